"""What rare classes count: the setting `train.class-balance`.

At a hospital with one melanoma among ten photographs a network soon learns to say no. Here every
class counts as much as any other: by the loss, or by how often its images are drawn.
"""

from torch import Tensor


def class_weights(labels: Tensor) -> Tensor:
    """What an image of each class counts, so that all n labels count n, and each class as much.

    Args:
        labels: int64 [n], from 0.

    Returns:
        n / (number of classes that occur · images of the class), for each class up to the largest
        label; 0 for one that does not occur.
    """
    counts = labels.bincount()
    occurring = (counts > 0).sum()
    return (len(labels) / (occurring * counts)).nan_to_num(posinf=0.0)
