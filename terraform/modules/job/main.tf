# An agent that runs to completion: each run is an execution, or a task of one.

resource "google_cloud_run_v2_job" "this" {
  project             = var.project
  location            = var.region
  name                = var.name
  deletion_protection = false
  labels              = var.labels

  template {
    task_count = 1

    template {
      service_account               = var.account
      timeout                       = "${var.timeout}s"
      max_retries                   = 0 # the control plane retries; both would multiply
      gpu_zonal_redundancy_disabled = var.accelerator == null ? null : true

      containers {
        name  = "agent"
        image = var.image

        resources {
          limits = var.limits
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
      }

      dynamic "node_selector" {
        for_each = var.accelerator == null ? [] : [var.accelerator]
        content {
          accelerator = node_selector.value
        }
      }
    }
  }

  lifecycle {
    # The build deploys images; a plan must not take them back.
    ignore_changes = [template[0].template[0].containers[0].image, client, client_version]
  }
}
