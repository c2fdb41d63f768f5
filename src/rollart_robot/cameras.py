"""Cameras: colour and depth pictures of a MuJoCo scene, without a display.

MuJoCo chooses its OpenGL platform when it is imported, and by default one that needs a display.
Setting MUJOCO_GL=egl before the import would change that, but then the import itself fails where
EGL is missing, though most runs draw nothing. So the platform is chosen here, at the first
picture: what MUJOCO_GL says, else EGL.
"""

import atexit
import os
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import mujoco
import numpy as np
from mujoco import gl_context

from rollart.errors import UserError, describe_error
from rollart_robot.envs import Floats, Image
from rollart_robot.point_clouds import CameraPose, Workspace, scene_points

_mujoco: Any = mujoco
"""Its functions are in compiled modules that a type checker cannot read."""
_DEPTH_PIXELS = 128
"""Height and width of a depth picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where pictures are taken from, if not by a camera of the model.

    Example:
        >>> View(look_at=(0.0, 0.6, 0.1), distance_m=1.2, azimuth=150.0, elevation=-30.0)

    """

    look_at: tuple[float, float, float]
    """The point in the middle of the picture, in metres."""
    distance_m: float
    azimuth: float
    elevation: float
    """Angles of the line of sight, in degrees; an elevation below 0 looks down."""


class Camera:
    """A named camera of a model; one OpenGL context for each size of picture.

    Points are what the named camera sees; pictures are taken from `view`, if there is one.

    Example:
        >>> Camera(env.model, env.data, name="corner4").picture(320, 240).shape
        (240, 320, 3)

    """

    def __init__(self, model: Any, data: Any, *, name: str, view: View | None = None) -> None:
        self._model, self._data, self._name = model, data, name
        self._for_pictures: Any = name
        if view is not None:
            free = self._for_pictures = _mujoco.MjvCamera()
            free.lookat[:] = view.look_at
            free.distance = view.distance_m
            free.azimuth, free.elevation = view.azimuth, view.elevation
        self._renderers = dict[tuple[int, int], Any]()

    def picture(self, width: int, height: int) -> Image:
        """Return the scene in colour."""
        renderer = self._renderer(width, height)
        renderer.disable_depth_rendering()
        renderer.update_scene(self._data, camera=self._for_pictures)
        # Without a GPU they take three quarters of the time.
        for costly in (_mujoco.mjtRndFlag.mjRND_SHADOW, _mujoco.mjtRndFlag.mjRND_REFLECTION):
            renderer.scene.flags[costly] = False
        return np.array(renderer.render(), dtype=np.uint8)

    def points(self, count: int, workspace: Workspace) -> Floats:
        """Return `count` points of the scene inside the workspace."""
        renderer = self._renderer(_DEPTH_PIXELS, _DEPTH_PIXELS)
        renderer.enable_depth_rendering()
        renderer.update_scene(self._data, camera=self._name)
        depth = np.array(renderer.render(), dtype=np.float32)
        return scene_points(depth, self._pose(), workspace, count)

    def close(self) -> None:
        """Free the OpenGL contexts."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    def _pose(self) -> CameraPose:
        camera = self._data.camera(self._name)
        return CameraPose(
            position=np.array(camera.xpos),
            rotation=np.array(camera.xmat).reshape(3, 3),
            view_degrees=float(self._model.camera(self._name).fovy[0]),
        )

    def _renderer(self, width: int, height: int) -> Any:
        key = (width, height)
        if key not in self._renderers:
            self._renderers[key] = _open_renderer(self._model, width, height)
            _drawing.add(self)
            # After MuJoCo's own handler was registered, so before it runs and ends EGL.
            atexit.unregister(_close_all)
            atexit.register(_close_all)
        return self._renderers[key]


_drawing = WeakSet[Camera]()
"""Cameras with open contexts."""


def _close_all() -> None:
    for camera in list(_drawing):
        camera.close()


class _Renderer(mujoco.Renderer):
    """A renderer that can end though its beginning failed."""

    _gl_context = None
    _mjr_context = None


def _open_renderer(model: Any, width: int, height: int) -> Any:
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)
    platform = os.environ.get("MUJOCO_GL", "").strip().lower()
    try:
        if platform in ("", "egl"):
            from mujoco import egl  # noqa: PLC0415 fails where EGL is missing

            # The default is for a context that could not be made: without it, its end is an error.
            gl_context.GLContext = type("EglContext", (egl.GLContext,), {"_context": None})
        return _Renderer(model, height=height, width=width)
    except Exception as error:
        # PyOpenGL and the drivers raise errors of many kinds; all mean that nothing can be drawn.
        raise UserError(
            f"this machine cannot draw a MuJoCo scene (MUJOCO_GL={platform or 'egl'}): "
            f"{describe_error(error)}; install EGL (apt-get install libegl1 libgl1 "
            "libgl1-mesa-dri) and set MUJOCO_GL=egl, or OSMesa (libosmesa6) and set "
            "MUJOCO_GL=osmesa; states need no drawing, only points and films do"
        ) from error
