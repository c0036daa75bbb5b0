"""k-SALSA, a small version: a code is an average of k training images that keeps their texture.

"k-SALSA: k-anonymous synthetic averaging of retinal images via local style alignment" (Jeon et al.,
ECCV 2022, arXiv:2303.10824), and the authors' public code. Images are cut into clusters of k. An
average starts at the mean of a cluster's codes. It is moved so that its image has the content of
all members, and in each of 4 x 4 patches the texture of a patch of the members.

Numbered deviations; 1 to 4 make it a stand-in that needs only the hospital's own networks:
1. Codes are those of the hospital's own GAN, by projection; the authors train an encoder for W+.
2. Content is compared by features of the hospital's own classifier; the authors use a MoCo network.
3. Texture is compared after the first convolution of this classifier; the authors use the second
   convolution of VGG19.
4. Gram matrices are means over a patch's pixels. The authors' are sums over 64 x 64 pixels with a
   weight of 1e-6, which equals a weight of 1e-6 · 4096² for means.
5. A cluster of `averages` has one class. Those of `blind_averages` ignore classes, as the authors'
   do. An average has the class of most of its images; the authors' label has all shares.
6. If fewer than k images (of a class) are left over, they are not used, unless the class had no
   average. The authors average them too, although they are fewer than k patients; a single one is
   rendered as its projection.

Shapes: `n` images of a class, `k` of a cluster, `D` size of a code, `P` patches, `F` features.
"""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gan.codes import Codes, Source
from gan.judges import Judge, class_judge
from gan.projection import LEARNING_RATE, ramp

CONTENT, STYLE = 100.0, 1e-6 * 4096**2
GRID = 4  # patches along a side


def averages(source: Source) -> Codes:
    """The averages [n // k, D] of each class; fewer than k images of a class have one average."""
    w, judge = source.projection().w, class_judge(source)
    return {label: _averages_of_class(source, w, judge, label) for label in source.rows}


def _averages_of_class(source: Source, codes: Tensor, judge: Judge, label: int) -> Tensor:
    rows, k = source.rows[label], source.k
    clusters = group_equally(torch.cdist(codes[rows], codes[rows]), min(k, len(rows)))
    made = [
        source.make_once(f"average-{k}-{label}-{index}", _average, source, codes, judge, rows[own])
        for index, own in enumerate(clusters)
    ]
    return torch.stack([each["w"] for each in made])


def blind_averages(source: Source) -> Codes:
    """Averages of clusters that ignore classes. Each has the class of most of its k images.

    A class that no average would have gets the average with most of its images. If all its images
    are left over, it has an average of its own.
    """
    w, judge, k, codes = source.projection().w, class_judge(source), source.k, {}
    clusters = group_equally(torch.cdist(w, w), min(k, len(w)))
    classes = int(source.labels.max()) + 1
    counts = torch.stack([source.labels[each].bincount(minlength=classes) for each in clusters])
    for label in source.rows:
        if not counts[:, label].any():
            codes[label] = _averages_of_class(source, w, judge, label)
            continue
        own = (counts.argmax(dim=1) == label).nonzero().flatten()
        own = own if len(own) else counts[:, label].argmax(dim=0, keepdim=True)
        made = [
            source.make_once(f"average-{k}-blind-{i}", _average, source, w, judge, clusters[i])
            for i in own.tolist()
        ]
        codes[label] = torch.stack([each["w"] for each in made])
    return codes


def _average(source: Source, codes: Tensor, judge: Judge, members: Tensor) -> dict[str, Tensor]:
    """The code w [D] of the average of images with indices int64 [k], from all codes [N, D]."""
    images = source.images[members]
    with torch.no_grad():
        wanted, textures = judge.features(images), grams(judge.first(images))
    w = codes[members].mean(dim=0, keepdim=True).requires_grad_()
    noise = source.noise()
    optimizer = torch.optim.Adam([w], lr=LEARNING_RATE)
    steps = source.effort.average_steps
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * ramp(step / steps)
        image = source.generator.synthesise(w, noise)
        content = (1 - cosine_similarity(judge.features(image), wanted)).mean()
        loss = CONTENT * content + STYLE * style(grams(judge.first(image))[0], textures)
        optimizer.zero_grad()
        loss.backward(inputs=[w])
        optimizer.step()
    return {"w": w.detach()[0]}


def group_equally(far: Tensor, k: int) -> list[Tensor]:
    """Cut images into clusters of k by their distances [n, n]; n mod k images are in none.

    The image with the largest sum of distances to the remaining images, and its k - 1 nearest
    images, are a cluster.

    Returns:
        The indices int64 [k] of each cluster, the farthest one first.
    """
    left = torch.arange(len(far), device=far.device)
    clusters = []
    while len(left) >= k:
        among = far[left][:, left]
        farthest = among.sum(dim=1).argmax()
        among[farthest, farthest] = -1.0  # it comes first, even before its copies
        clusters.append(left[among[farthest].argsort(stable=True)[:k]])
        left = left[~torch.isin(left, clusters[-1])]
    return clusters


def grams(maps: Tensor) -> Tensor:
    """The Gram matrices [n, P, F · F] of the patches of feature maps [n, F, h, w], h, w >= 4."""
    height, width = maps.shape[2] // GRID, maps.shape[3] // GRID
    cut = maps[:, :, : GRID * height, : GRID * width]
    cut = cut.unflatten(3, (GRID, width)).unflatten(2, (GRID, height))  # [n, F, 4, h', 4, w']
    patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(4).flatten(1, 2)  # [n, P, F, pixels]
    products: Tensor = patches @ patches.transpose(2, 3)
    return products.flatten(2) / (height * width)


def style(average: Tensor, members: Tensor) -> Tensor:
    """The distance of the texture of an average [P, F · F] from members [k, P, F · F].

    Each patch of a member is compared with the patch of the average that is most similar.
    """
    similar = cosine_similarity(members[:, :, None], average, dim=3)  # [k, P, P]
    aligned = average[similar.argmax(dim=2)]  # [k, P, F · F]
    return (aligned - members).square().sum(dim=2).mean()
