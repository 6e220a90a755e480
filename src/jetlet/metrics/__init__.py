"""What jobs measure: ``job.metrics()`` returns it, and a MetricsServer has it for Prometheus."""

from jetlet.metrics.job_metrics import JobMetrics, VertexMetrics
from jetlet.metrics.server import MetricsServer

__all__ = ["JobMetrics", "MetricsServer", "VertexMetrics"]
