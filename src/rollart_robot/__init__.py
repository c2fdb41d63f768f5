"""Robot policies for rollart: a generative policy that acts in one network evaluation.

    options           what a user may set: the policy, its rivals and their parts
    networks          state network, point-cloud encoder and U-Net
    normalizer        min-max scaling that travels with the weights
    objectives/       one file per method: meanflow (omp, mp1), flowpolicy, diffusion
    derivatives       du/dt of a mean velocity: exact, by differences, by double backward
    policy            observations and noise in, a chunk of actions out
    imitation         training from demonstrations, resumable to the bit
    tasks, envs       what there is to do, behind one interface: *_env are the suites
    experts           who shows it; demonstrations: its episodes and their files
    episodes          many episodes at once; rendering, cameras, point_clouds: pictures of them
    runtime           the policy of a run: its config section and its model directory
    task_env, player  how it plays in a run; learner and trainer: how it learns there
    env_process       environments in child processes, so that they use every core
    self_imitation    successes as further demonstrations, beside rewards
    commands          `rollart robot`

A plug-in: it imports rollart's public interface, and nothing of rollart imports it. Importing
this package loads no torch.
"""
