// Browsers run no worker for a page that was opened from the disk (file:). The search of the site
// then runs in a hidden frame, which takes and gives the same messages. The name that MkDocs looks
// for is iframe-worker: with this file it does not load its own from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"></script>`;
      this.window = new Promise((ready) => {
        frame.onload = () => {
          frame.contentWindow.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          ready(frame.contentWindow);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.window.then((w) => w.dispatchEvent(new w.MessageEvent("message", { data })));
    }
  };
}
