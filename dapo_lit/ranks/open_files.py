"""The limit on the files that a process may have open at once; every connection is one."""

import resource

from ablations.errors import UserError

GROUPS, OTHER_FILES = 6, 256
"""Process groups of a rank (the world, the run's, sampling, the mesh, two of the engine), each of which
holds a file descriptor for every rank and three more with gloo (measured at 2 to 8 ranks), and what else a process
opens."""


def allow_files(ranks: int, connections: int = 0) -> None:
    """Raises this process's limit on open files to what one of `ranks` processes needs, where the system allows it.

    connections: to servers, at once.

    Raises UserError: it does not. Without it, a large run would die when its last groups or connections are made.
    """
    needed = OTHER_FILES + GROUPS * (ranks + 3) + connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"this process needs {needed} open files (the groups of {ranks} processes, {connections} connections to "
            f"servers), and the system allows {hard}: raise the hard limit (ulimit -Hn; LimitNOFILE of the SLURM "
            "daemon), train with fewer processes, or lower rollout.max_batch_size"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
