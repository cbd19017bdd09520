"""Sample budgets for each layer, learned: a policy over layers, many workers, and a folder that survives a kill.

The total is shared out among the layers. A schedule is drawn from the policy, a task scores it, and REINFORCE moves
the policy towards what scored better: after arXiv 2605.01910, Appendices J and K. Everything is a file in one folder:
:mod:`~santa_hw.budget.folder` names them, :func:`~santa_hw.budget.coordinator.learn` writes schedules and learns,
:mod:`~santa_hw.budget.workers` evaluate.

Importing this package imports nothing heavy; only :mod:`~santa_hw.budget.reward` needs torch.
"""
