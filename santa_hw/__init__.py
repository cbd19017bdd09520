"""Hardware models of the SANTA family of sampled, multiplier-free attention.

Importing this package imports nothing else: take what you need from its modules
(``from santa_hw.design import Design``).
"""

__version__ = "0.1.0"
