"""What was quantised and what was left as it is, and why."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class QuantizationReport:
    """Names of layers: those in few bits, with what they became, and those left alone, with the reason."""

    quantized: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.quantized)} layers quantised, {len(self.skipped)} left alone"]
        lines += [f"  {name}: left alone, {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)
