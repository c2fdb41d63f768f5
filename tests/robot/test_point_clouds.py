import numpy as np
import pytest

from rollart.errors import EnvError
from rollart_robot.point_clouds import CameraPose, Workspace, sample_farthest, unproject


def test_a_wall_in_front_of_the_camera_is_where_it_is():
    # Looks along -z from 1 m above the origin, with a right angle of view.
    pose = CameraPose(position=np.array([0.0, 0.0, 1.0]), rotation=np.eye(3), view_degrees=90.0)
    points = unproject(np.full((2, 2), 3.0, dtype=np.float32), pose)
    assert points.tolist() == [
        [-1.5, 1.5, -2.0],
        [1.5, 1.5, -2.0],
        [-1.5, -1.5, -2.0],
        [1.5, -1.5, -2.0],
    ]


def test_a_turned_camera_turns_its_points():
    # Its own -z is the world's +x, its own y the world's z.
    rotation = np.array([[0.0, 0.0, -1.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    pose = CameraPose(position=np.zeros(3), rotation=rotation, view_degrees=60.0)
    points = unproject(np.full((1, 1), 2.0, dtype=np.float32), pose)
    assert np.allclose(points, [[2.0, 0.0, 0.0]])


def test_the_workspace_keeps_what_is_inside():
    points = np.array([[0, 0, 0.5], [0, 0, 1.5], [-2, 0, 0.5], [1, 1, 1]], dtype=np.float32)
    box = Workspace(low=(-1, -1, 0), high=(1, 1, 1))
    assert box.crop(points).tolist() == [[0, 0, 0.5], [1, 1, 1]]


def test_farthest_points_are_spread_and_the_same_each_time():
    line = np.zeros((101, 3), dtype=np.float32)
    line[:, 0] = np.linspace(0, 1, 101)
    chosen = sample_farthest(line, 5)
    assert sorted(chosen[:, 0].round(2).tolist()) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert chosen.tolist() == sample_farthest(line, 5).tolist()


def test_too_few_points_are_repeated():
    points = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert sample_farthest(points, 5)[:, 0].tolist() == [0, 3, 0, 3, 0]


def test_no_points_at_all_are_an_error():
    with pytest.raises(EnvError, match="no point of the scene"):
        sample_farthest(np.zeros((0, 3), dtype=np.float32), 5)
