# An agent that takes work from a queue: the agent, which listens on a loopback address, and beside it the worker, which
# takes messages, claims their runs and hands them over.

resource "google_cloud_run_v2_worker_pool" "this" {
  project             = var.project
  location            = var.region
  name                = var.name
  deletion_protection = false
  labels              = var.labels

  scaling {
    scaling_mode          = "MANUAL"
    manual_instance_count = var.instances
  }

  template {
    service_account               = var.account
    gpu_zonal_redundancy_disabled = var.accelerator == null ? null : true

    containers {
      name  = "agent"
      image = var.image

      resources {
        limits = var.limits
      }

      dynamic "env" {
        for_each = merge(var.env, { ERRAND_PROTOCOL = "http", ERRAND_LISTEN = "127.0.0.1", PORT = "8080" })
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

    containers {
      name  = "worker"
      image = var.worker_image

      resources {
        limits = { cpu = "1", memory = "512Mi" }
      }

      dynamic "env" {
        for_each = merge(var.worker_env, { ERRAND_FORWARD_URL = "http://127.0.0.1:8080/run" })
        content {
          name  = env.key
          value = env.value
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
    # The build deploys images, and the control plane scales; a plan must take back neither.
    ignore_changes = [
      template[0].containers[0].image, template[0].containers[1].image, scaling[0].manual_instance_count, client, client_version,
    ]
  }
}
