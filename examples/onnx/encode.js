// Encode vectors with an exported model and compare the codes with those written by model.py:
//
//   node encode.js digits.onnx digits.json

const fs = require("node:fs");
const ort = require("onnxruntime-node");

// A projection this close to zero may have either sign, depending on the order of summation.
const ROUNDING = 1e-5;

async function main(modelPath, rowsPath) {
  const { rows, codes } = JSON.parse(fs.readFileSync(rowsPath, "utf8"));
  const model = await ort.InferenceSession.create(modelPath);
  const x = new ort.Tensor("float32", Float32Array.from(rows.flat()), [rows.length, rows[0].length]);
  const { code, projection } = await model.run({ x });

  const [, bytesPerCode] = code.dims;
  const [, bits] = projection.dims;
  let equal = 0;
  let rounded = 0;
  for (let row = 0; row < rows.length; row++) {
    const made = code.data.subarray(row * bytesPerCode, (row + 1) * bytesPerCode);
    const values = projection.data.subarray(row * bits, (row + 1) * bits);
    if (Buffer.from(made).toString("hex") === codes[row]) equal++;
    else if (values.some((value) => Math.abs(value) < ROUNDING)) rounded++;
  }
  console.log(`${rows.length} codes of ${bits} bits: ${equal} equal, ${rounded} within rounding`);
  if (equal + rounded !== rows.length) process.exitCode = 1;
}

if (process.argv.length !== 4) {
  console.error("node encode.js MODEL.onnx ROWS.json");
  process.exitCode = 2;
} else {
  main(process.argv[2], process.argv[3]);
}
