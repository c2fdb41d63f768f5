"""Robot policies for rollart: a generative policy that acts in one network evaluation.

    options           what a user may set: the policy, its rivals and their parts
    networks          state network, point-cloud encoder and U-Net
    normalizer        min-max scaling that travels with the weights
    objectives/       one file per method: meanflow (omp, mp1), flowpolicy, diffusion
    derivatives       du/dt of a mean velocity: exact, by differences, by double backward
    policy            observations and noise in, a chunk of actions out
    imitation         training from demonstrations, resumable to the bit

A plug-in: it imports rollart's public interface, and nothing of rollart imports it. Importing
this package loads no torch.
"""
