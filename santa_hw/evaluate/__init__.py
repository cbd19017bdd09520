"""Tasks and scores: what a causal LM keeps of its accuracy under a method of attention.

A task is a :class:`~santa_hw.evaluate.perplexity.Perplexity`, or a
:class:`~santa_hw.evaluate.decoding.Decoding` made by :func:`~santa_hw.evaluate.retrieval.needle` or
:func:`~santa_hw.evaluate.words.fwe`, which write their own prompts, or from records by
:func:`~santa_hw.evaluate.gsm8k.gsm8k`, :func:`~santa_hw.evaluate.mmlu.mmlu` or
:func:`~santa_hw.evaluate.ruler.ruler`. It has a `name`, its `phases`, its `token_windows`, and two methods:
``prepare(tick)``, what all methods share, and ``evaluate(hook, tick)``, the score columns of one attention
hook. They call `tick` `preparations` and `units` times.

Importing this package imports nothing else: scores and statistics of stored rows need no torch.
"""
