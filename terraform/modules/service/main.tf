# An agent that is asked over HTTP. Who may ask is said by run.invoker, one grant for each caller.

resource "google_cloud_run_v2_service" "this" {
  project             = var.project
  location            = var.region
  name                = var.name
  ingress             = "INGRESS_TRAFFIC_ALL"
  deletion_protection = false
  labels              = var.labels

  scaling {
    min_instance_count = var.min_instances
  }

  template {
    service_account                  = var.account
    timeout                          = "${var.timeout}s"
    max_instance_request_concurrency = var.concurrency
    gpu_zonal_redundancy_disabled    = var.accelerator == null ? null : true

    scaling {
      max_instance_count = var.max_instances
    }

    containers {
      name  = "agent"
      image = var.image

      ports {
        container_port = 8080
      }

      resources {
        limits            = var.limits
        cpu_idle          = !var.always_on
        startup_cpu_boost = true
      }

      dynamic "env" {
        for_each = var.env
        content {
          name  = env.key
          value = env.value
        }
      }

      dynamic "env" {
        for_each = var.secrets
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = env.value
              version = "latest"
            }
          }
        }
      }

      startup_probe {
        period_seconds    = 2
        timeout_seconds   = 2
        failure_threshold = 60
        tcp_socket {
          port = 8080
        }
      }
    }

    dynamic "node_selector" {
      for_each = var.accelerator == null ? [] : [var.accelerator]
      content {
        accelerator = node_selector.value
      }
    }
  }

  lifecycle {
    # The build deploys images; a plan must not take them back.
    ignore_changes = [template[0].containers[0].image, client, client_version]
  }
}

resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = var.invokers

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.this.name
  role     = "roles/run.invoker"
  member   = each.value
}
