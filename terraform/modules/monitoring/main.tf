# What is looked at: queue age, what cannot be placed, what nobody knows the outcome of, whether anything ends at all,
# dead letters, and the platform's own figures of the subscriptions and of the service.

locals {
  # The control plane's figures, by the names that /metrics has. Each process has its own, so they are summed or the
  # largest is taken: only the one that decides has a queue.
  promql = {
    queue_age = {
      title    = "Runs wait too long for a slot"
      severity = "WARNING"
      query    = "max(errand_queue_oldest_seconds) > ${var.limits.queue_age}"
      duration = "120s"
      advice   = "Ask `errand top` which agent waits and `errand explain RUN` what for: a full target, a quota, or workers that are gone."
    }
    unschedulable = {
      title    = "Runs that no target can take"
      severity = "WARNING"
      query    = "max(errand_runs{state=\"unschedulable\"}) > 0"
      duration = "${var.limits.unschedulable}s"
      advice   = "`errand runs --state unschedulable`, then `errand explain RUN`: each target says why not. A change of the fleet wakes them."
    }
    unknown_receipts = {
      title    = "Effects with an unknown outcome"
      severity = "ERROR"
      query    = "max(errand_receipts_unknown) > 0"
      duration = "60s"
      advice   = "`errand receipts --state unknown`: find out in the outside system whether it happened, then `errand resolve RECEIPT`. Nothing repeats it by itself."
    }
    progress = {
      title    = "Nothing ends although runs wait"
      severity = "CRITICAL"
      query    = "(sum(increase(errand_runs_finished_total[${var.limits.no_progress}s])) or vector(0)) == 0 and sum(min_over_time(errand_queue_depth[${var.limits.no_progress}s])) > 0"
      duration = "0s"
      advice   = "Look whether some process leads (errand_leader), whether targets have slots, and whether workers claim what they are sent."
    }
    leader = {
      title    = "No control process decides"
      severity = "CRITICAL"
      query    = "sum(errand_leader) == 0"
      duration = "120s"
      advice   = "The dispatcher lease is one document of the database: the log of the control plane says who holds it and why another does not."
    }
  }
}

resource "google_monitoring_alert_policy" "control" {
  for_each = local.promql

  project               = var.project
  display_name          = "${var.prefix}: ${each.value.title}"
  combiner              = "OR"
  severity              = each.value.severity
  notification_channels = var.channels

  conditions {
    display_name = each.value.title
    condition_prometheus_query_language {
      query               = each.value.query
      duration            = each.value.duration
      evaluation_interval = "60s"
      # A figure exists from the first scrape on; before that the platform does not know it.
      disable_metric_validation = true
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = each.value.advice
  }
}

resource "google_monitoring_alert_policy" "unacked" {
  project               = var.project
  display_name          = "${var.prefix}: messages are not taken"
  combiner              = "OR"
  severity              = "ERROR"
  notification_channels = var.channels

  conditions {
    display_name = "Oldest unacknowledged message"
    condition_threshold {
      filter          = "resource.type = \"pubsub_subscription\" AND metric.type = \"pubsub.googleapis.com/subscription/oldest_unacked_message_age\" AND resource.labels.subscription_id = starts_with(\"${var.prefix}-\")"
      comparison      = "COMPARISON_GT"
      threshold_value = var.limits.unacked_age
      duration        = "60s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MAX"
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "The subscription's receiver is gone or refuses: workers of a pool for PREFIX-pool-TARGET, the control plane for PREFIX-control, a function for the rest."
  }
}

resource "google_monitoring_alert_policy" "dead_letters" {
  project               = var.project
  display_name          = "${var.prefix}: dead letters"
  combiner              = "OR"
  severity              = "ERROR"
  notification_channels = var.channels

  conditions {
    display_name = "Messages given up"
    condition_threshold {
      filter          = "resource.type = \"pubsub_subscription\" AND metric.type = \"pubsub.googleapis.com/subscription/dead_letter_message_count\" AND resource.labels.subscription_id = starts_with(\"${var.prefix}-\")"
      comparison      = "COMPARISON_GT"
      threshold_value = 0
      duration        = "0s"

      aggregations {
        alignment_period   = "300s"
        per_series_aligner = "ALIGN_DELTA"
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "A message was delivered too often and went to ${var.prefix}-deadletter, where a function records it. Its run is not lost: the store knows it."
  }
}

resource "google_monitoring_alert_policy" "errors" {
  project               = var.project
  display_name          = "${var.prefix}: the control plane answers with errors"
  combiner              = "OR"
  severity              = "ERROR"
  notification_channels = var.channels

  conditions {
    display_name = "Share of 5xx"
    condition_threshold {
      filter             = "resource.type = \"cloud_run_revision\" AND metric.type = \"run.googleapis.com/request_count\" AND resource.labels.service_name = \"${var.control}\" AND metric.labels.response_code_class = \"5xx\""
      denominator_filter = "resource.type = \"cloud_run_revision\" AND metric.type = \"run.googleapis.com/request_count\" AND resource.labels.service_name = \"${var.control}\""
      comparison         = "COMPARISON_GT"
      threshold_value    = var.limits.http_error_share
      duration           = "300s"

      aggregations {
        alignment_period     = "60s"
        per_series_aligner   = "ALIGN_RATE"
        cross_series_reducer = "REDUCE_SUM"
      }
      denominator_aggregations {
        alignment_period     = "60s"
        per_series_aligner   = "ALIGN_RATE"
        cross_series_reducer = "REDUCE_SUM"
      }
    }
  }
}

locals {
  charts = [
    { title = "Oldest run that waits for a slot (s)", query = "max(errand_queue_oldest_seconds)" },
    { title = "Runs that wait, by agent", query = "max by (agent) (errand_queue_depth)" },
    { title = "Runs that hold a slot, by agent", query = "max by (agent) (errand_running)" },
    { title = "Runs that are not over, by state", query = "max by (state) (errand_runs)" },
    { title = "Runs that ended per minute, by outcome and reason", query = "60 * sum by (outcome, reason) (rate(errand_runs_finished_total[5m]))" },
    { title = "Submitted and ended per minute", query = "60 * sum(rate(errand_runs_submitted_total[5m]))" },
    { title = "Retries per minute, by agent", query = "60 * sum by (agent) (rate(errand_run_retries_total[5m]))" },
    { title = "Wait until the start, 95 of 100 (s)", query = "histogram_quantile(0.95, sum by (agent, le) (rate(errand_run_wait_seconds_bucket[5m])))" },
    { title = "Duration, 95 of 100 (s)", query = "histogram_quantile(0.95, sum by (agent, le) (rate(errand_run_duration_seconds_bucket[5m])))" },
    { title = "Slots in use, by target", query = "max by (target) (errand_target_slots_used)" },
    { title = "Effects with an unknown outcome", query = "max(errand_receipts_unknown)" },
    { title = "Oldest unacknowledged message, by subscription (s)", query = "max by (subscription_id) ({\"pubsub.googleapis.com/subscription/oldest_unacked_message_age\", monitored_resource=\"pubsub_subscription\", subscription_id=~\"${var.prefix}-.*\"})" },
    { title = "Dead letters, by subscription", query = "sum by (subscription_id) (increase({\"pubsub.googleapis.com/subscription/dead_letter_message_count\", monitored_resource=\"pubsub_subscription\", subscription_id=~\"${var.prefix}-.*\"}[5m]))" },
    { title = "Answers of the control plane per second, by status", query = "sum by (status) (rate(errand_http_requests_total[5m]))" },
  ]
}

resource "google_monitoring_dashboard" "this" {
  project = var.project
  dashboard_json = jsonencode({
    displayName = "Errand (${var.prefix})"
    mosaicLayout = {
      columns = 48
      tiles = [
        for i, c in local.charts : {
          xPos   = 24 * (i % 2)
          yPos   = 16 * floor(i / 2)
          width  = 24
          height = 16
          widget = {
            title = c.title
            xyChart = {
              dataSets = [{ plotType = "LINE", targetAxis = "Y1", timeSeriesQuery = { prometheusQuery = c.query } }]
            }
          }
        }
      ]
    }
  })
}
