"""Write the checked-in SystemVerilog package, that of the default design, again."""

from santa_hw import assets
from santa_hw.design import Design
from santa_hw.rtl.package import FILE, package

(assets.path("rtl_models") / FILE).write_text(package(Design()), encoding="utf-8")
