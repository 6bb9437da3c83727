"""The paper in fifty lines: l∞ codes, their unfolded encoder, siamese training. [Wang2016]

    python examples/paper.py

`DeepLinf.paper(n_bits)` is the paper's full setting as a scikit-learn estimator.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

from antipodal import LinfEncoder, evaluate, ksvd, pack, solve_linf

N_BITS, BOUND, PENALTY, MARGIN = 48, 1.0, 0.6, 5.0
torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
Y, labels = torch.tensor(StandardScaler().fit_transform(X)).float(), torch.tensor(y)
train, query = slice(0, 1300), slice(1300, None)


def score(name, outputs):
    """Print the mAP of the codes: the signs of the outputs."""
    codes = pack((outputs > 0).numpy().astype("uint8"))
    result = evaluate(codes[query], codes[train], y[query], y[train], n_bits=N_BITS)
    print(f"{name}: mAP {result.map:.1f}, by chance {result.chance:.1f}")


# Eq. 1: min ‖Dx - y‖² subject to ‖x‖∞ ≤ λ, with a dictionary from K-SVD, solved to convergence.
D = ksvd(Y[train], N_BITS, sparsity=8, n_iter=10, random_state=0).dictionary
exact = solve_linf(Y, D, BOUND).codes
print(f"{(exact.abs() > 0.99 * BOUND).float().mean():.0%} of the entries are at the bound")
score("l-infinity codes", exact)

# Eq. 11: K = 2 iterations of ADMM, unfolded into a network.
encoder = LinfEncoder.from_dictionary(D, BOUND, PENALTY, n_stages=2)
score("unfolded, untrained", encoder(Y).detach())

# Eq. 12: ½d² for similar pairs and ½max(0, m - d)² for dissimilar ones, for all pairs of a batch.
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01, momentum=0.9)
for _ in range(30):
    for batch in torch.randperm(1300).split(128):
        codes, similar = encoder(Y[batch]), labels[batch, None] == labels[batch]
        distance = ((codes[:, None] - codes).square().sum(dim=2) + 1e-12).sqrt()
        pull = distance[similar].square().mean() / 2
        push = (MARGIN - distance[~similar]).clamp(min=0).square().mean() / 2
        optimizer.zero_grad()
        (pull + push).backward()
        optimizer.step()
score("trained", encoder(Y).detach())
