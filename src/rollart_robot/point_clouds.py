"""Point clouds: a depth picture to points in the world, cropped and thinned.

Everything here is numpy; the depth picture comes from `cameras`. The points of the scene are those
inside the workspace, a box that leaves out floor, table top and background. Farthest-point
sampling then keeps as many as asked, spread evenly over what was seen.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollart.errors import EnvError
from rollart_robot.envs import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The box of the world, in metres, whose points a policy sees.

    Example:
        >>> Workspace(low=(-0.6, 0.3, 0.005), high=(0.6, 1.1, 0.7))

    """

    low: tuple[float, float, float]
    high: tuple[float, float, float]

    def crop(self, points: Floats) -> Floats:
        """Return the points inside the box."""
        inside = (points >= np.array(self.low)) & (points <= np.array(self.high))
        return points[inside.all(axis=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraPose:
    """Where a camera is: position, rotation (camera to world) and vertical angle of view.

    Example:
        >>> CameraPose(position=np.zeros(3), rotation=np.eye(3), view_degrees=45.0)

    """

    position: npt.NDArray[np.float64]
    rotation: npt.NDArray[np.float64]
    view_degrees: float


def unproject(depth: Floats, pose: CameraPose) -> Floats:
    """Return the world point `[height · width, 3]` of each pixel of a depth picture in metres.

    A MuJoCo camera looks along its own -z, with y up and x to the right.
    """
    height, width = depth.shape
    focal = 0.5 * height / np.tan(np.radians(pose.view_degrees) / 2)
    rows, columns = np.mgrid[0:height, 0:width]
    right = (columns + 0.5 - width / 2) / focal * depth
    up = -(rows + 0.5 - height / 2) / focal * depth
    local = np.stack([right, up, -depth], axis=-1).reshape(-1, 3)
    return (local @ pose.rotation.T + pose.position).astype(np.float32)


def sample_farthest(points: Floats, count: int) -> Floats:
    """Return `count` of the points, each as far as possible from those taken before it.

    The first is the one farthest from the middle, so the result does not depend on chance. Fewer
    points than asked are repeated in turn; EnvError if there is none.
    """
    if not len(points):
        raise EnvError("no point of the scene is inside the workspace")
    if len(points) <= count:
        return points[np.arange(count) % len(points)]
    chosen = np.empty(count, dtype=np.int64)
    chosen[0] = np.argmax(((points - points.mean(axis=0)) ** 2).sum(axis=1))
    nearest = ((points - points[chosen[0]]) ** 2).sum(axis=1)
    for index in range(1, count):
        chosen[index] = np.argmax(nearest)
        offset = points - points[chosen[index]]
        np.minimum(nearest, np.einsum("ij,ij->i", offset, offset), out=nearest)
    return points[chosen]


def scene_points(depth: Floats, pose: CameraPose, workspace: Workspace, count: int) -> Floats:
    """Return `count` points `[count, 3]` of what a depth picture shows inside the workspace."""
    return sample_farthest(workspace.crop(unproject(depth, pose)), count)
