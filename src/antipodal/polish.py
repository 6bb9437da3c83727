"""Finish box-constrained least squares exactly: Newton steps on the entries that are free.

ADMM finds which entries rest on the box quickly and then, where the dictionary is nearly
singular, creeps towards the values of the others. Those solve a linear system.
"""

import torch
from torch import Tensor

from antipodal.neurons import clip

_BLOCK_BYTES = 2**25  # of the small systems that are factored together
_MOST_BLOCKED = 5  # times that the free entries of one step are thinned out


def kkt_violation(z: Tensor, gradient: Tensor, box: Tensor) -> Tensor:
    """How far each entry is from optimality: the slope along which it could still move downhill.

    An entry inside the box needs slope 0; one on its upper end may have a negative slope, one on
    its lower end a positive slope.
    """
    held = (z.abs() >= box) & (z * gradient < 0)
    return gradient.abs().masked_fill_(held, 0.0)


def projected_newton(
    z: Tensor, gram: Tensor, Dty: Tensor, box: Tensor, tol: Tensor, max_steps: int = 50
) -> Tensor:
    """Lower ½zᵀGz - zᵀDᵀy over the box |z| ≤ box, from z, each row for itself.

    Each step solves G_FF δ = -g_F on the free entries F: all but those on the box that the
    gradient holds there, or that δ would push out. Then it moves to clip(z + δ), which may put
    many entries on the box at once [Bertsekas1982], or along δ to the first entry that meets the
    box, which always lowers the objective, whichever lowers it more.
    """
    z = z.clone()
    left = torch.arange(len(z), device=z.device)
    for _ in range(max_steps):
        g = z[left] @ gram - Dty[left]
        violation = kkt_violation(z[left], g, box)
        going = (violation > 0.1 * tol[left]).any(dim=1)
        left, g, violation = left[going], g[going], violation[going]
        if not len(left):
            break
        at = z[left]
        on_box = at.abs() >= box
        held = on_box & (violation == 0)
        for _ in range(_MOST_BLOCKED):
            direction = _newton_direction(g, held, gram)
            blocked = on_box & ~held & (direction * at > 0)
            if not blocked.any():
                break
            held |= blocked
        moved = _move(at, g, direction, gram, box)
        z[left] = moved
        left = left[(moved != at).any(dim=1)]
    return z


def _newton_direction(gradient: Tensor, held: Tensor, gram: Tensor) -> Tensor:
    """Solve G_FF δ_F = -g_F a row, δ = 0 on the held entries, in blocks of bounded memory."""
    n = gram.shape[0]
    # The ridge keeps singular systems solvable; it shortens the step, not its end point.
    ridge = 10 * n * torch.finfo(gram.dtype).eps
    rows = max(1, _BLOCK_BYTES // (n * n * gram.element_size()))
    directions = []
    for i in range(0, len(gradient), rows):
        g, fixed = gradient[i : i + rows], held[i : i + rows]
        free = (~fixed).to(g.dtype)
        system = gram * free[:, :, None] * free[:, None, :]
        system.diagonal(dim1=1, dim2=2).add_(fixed.to(g.dtype) + ridge)
        factor, _ = torch.linalg.cholesky_ex(system)
        directions.append(torch.cholesky_solve(-(g * free)[:, :, None], factor)[:, :, 0])
    return torch.cat(directions)


def _move(z: Tensor, g: Tensor, direction: Tensor, gram: Tensor, box: Tensor) -> Tensor:
    """Return the better of clip(z + δ) and of z + tδ, t ≤ 1 as large as the box allows."""
    room = torch.where(direction > 0, box - z, box + z)
    reach = torch.where(direction != 0, room / direction.abs(), torch.inf)
    t = reach.amin(dim=1, keepdim=True).clamp(max=1.0)
    clipped = clip(z + direction, box) - z
    stopped = clip(z + t * direction, box) - z
    # The entries that stop the step are put on the box exactly, or they would stop the next too.
    first = reach <= t
    stopped = torch.where(first, torch.sign(direction) * box - z, stopped)

    def change(step: Tensor) -> Tensor:  # f(z + s) - f(z) = gᵀs + ½ sᵀGs
        return (g * step).sum(dim=1) + 0.5 * ((step @ gram) * step).sum(dim=1)

    gain_clipped, gain_stopped = change(clipped), change(stopped)
    step = torch.where((gain_clipped < gain_stopped)[:, None], clipped, stopped)
    step[~(torch.minimum(gain_clipped, gain_stopped) < 0)] = 0
    return clip(z + step, box)
