# The control plane: one service, any of whose processes serves and one of which decides.

locals {
  key_folder  = "/etc/errand/keys"
  auth_folder = "/etc/errand/auth"
  port        = 8080
  metrics     = 9464

  env = merge({
    ERRAND_STORE        = var.store
    ERRAND_BUS          = var.bus
    ERRAND_RUNTIME      = var.runtime
    ERRAND_AUTH         = "oidc:${local.auth_folder}/auth.json"
    ERRAND_SIGNING_KEYS = join(",", [for v in var.key_versions : "${local.key_folder}/${v}"])
    ERRAND_URL          = var.url
    ERRAND_METRICS      = "127.0.0.1:${local.metrics}"
  }, var.env)
}

resource "google_cloud_run_v2_service" "this" {
  project              = var.project
  location             = var.region
  name                 = var.name
  description          = "Errand's control plane"
  ingress              = var.ingress
  invoker_iam_disabled = !var.iam_check
  deletion_protection  = false # it holds nothing; the database has a protection of its own
  labels               = var.labels

  scaling {
    min_instance_count = var.min_instances
  }

  template {
    service_account                  = var.account
    timeout                          = "3600s" # streams of events and waiting callers
    max_instance_request_concurrency = 1000
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"

    scaling {
      max_instance_count = var.max_instances
    }

    containers {
      name  = "control"
      image = var.image

      ports {
        container_port = local.port
      }

      resources {
        limits            = { cpu = var.cpu, memory = var.memory }
        cpu_idle          = false # timers run between requests
        startup_cpu_boost = true
      }

      dynamic "env" {
        for_each = local.env
        content {
          name  = env.key
          value = env.value
        }
      }

      startup_probe {
        period_seconds    = 2
        timeout_seconds   = 2
        failure_threshold = 60
        http_get {
          path = "/health/startup"
          port = local.port
        }
      }

      liveness_probe {
        period_seconds    = 10
        timeout_seconds   = 5
        failure_threshold = 3
        http_get {
          path = "/health/live"
          port = local.port
        }
      }

      volume_mounts {
        name       = "keys"
        mount_path = local.key_folder
      }
      volume_mounts {
        name       = "auth"
        mount_path = local.auth_folder
      }
    }

    # Reads the figures on the loopback address, where they need no login, and writes them to Cloud Monitoring.
    containers {
      name       = "metrics"
      image      = var.metrics_sidecar
      depends_on = ["control"]

      resources {
        limits = { cpu = "500m", memory = "256Mi" }
      }

      volume_mounts {
        name       = "metrics"
        mount_path = "/etc/rungmp"
      }
    }

    volumes {
      name = "keys"
      secret {
        secret = var.key_secret
        dynamic "items" {
          for_each = var.key_versions
          content {
            version = items.value
            path    = items.value
          }
        }
      }
    }

    volumes {
      name = "auth"
      secret {
        secret = google_secret_manager_secret.config["auth"].secret_id
        items {
          version = google_secret_manager_secret_version.config["auth"].version
          path    = "auth.json"
        }
      }
    }

    volumes {
      name = "metrics"
      secret {
        secret = google_secret_manager_secret.config["metrics"].secret_id
        items {
          version = google_secret_manager_secret_version.config["metrics"].version
          path    = "config.yaml"
        }
      }
    }
  }

  lifecycle {
    # The build deploys images; a plan must not take them back.
    ignore_changes = [template[0].containers[0].image, client, client_version]
  }

  depends_on = [google_secret_manager_secret_iam_member.config]
}

# Configuration that a process reads as a file. Nothing of it is secret; a secret is how Cloud Run mounts a file.
locals {
  config = {
    auth = jsonencode(var.auth)
    metrics = yamlencode({
      apiVersion = "monitoring.googleapis.com/v1beta"
      kind       = "RunMonitoring"
      metadata   = { name = var.name }
      spec       = { endpoints = [{ port = local.metrics, path = "/metrics", interval = "30s" }] }
    })
  }
}

resource "google_secret_manager_secret" "config" {
  for_each = local.config

  project   = var.project
  secret_id = "${var.name}-${each.key}"

  replication {
    auto {}
  }
}

resource "google_secret_manager_secret_version" "config" {
  for_each = local.config

  secret      = google_secret_manager_secret.config[each.key].id
  secret_data = each.value

  lifecycle {
    create_before_destroy = true # the revision that runs reads the old one until the new one is there
  }
}

resource "google_secret_manager_secret_iam_member" "config" {
  for_each = local.config

  project   = var.project
  secret_id = google_secret_manager_secret.config[each.key].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${var.account}"
}

# Whoever calls. With iam_check off these grants decide nothing, and are what turning it on needs.
resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = var.invokers

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.this.name
  role     = "roles/run.invoker"
  member   = each.value
}
