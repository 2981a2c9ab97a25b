# An agent that is always on: one container with an address of its own. It is started and stopped by name, and its local
# disk is lost with it; what must last is in the session's state.

resource "google_cloud_run_v2_instance" "this" {
  project         = var.project
  location        = var.region
  name            = var.name
  launch_stage    = "BETA"
  ingress         = "INGRESS_TRAFFIC_ALL"
  service_account = var.account

  containers {
    name  = "agent"
    image = var.image

    dynamic "env" {
      for_each = var.env
      content {
        name  = env.key
        value = env.value
      }
    }
  }
}

resource "google_cloud_run_v2_instance_iam_member" "invoker" {
  for_each = var.invokers

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_instance.this.name
  role     = "roles/run.invoker"
  member   = each.value
}
