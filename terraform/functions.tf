# Functions: the edges of the control plane. Each is a service of its own from one image, and calls the control plane as
# itself.

locals {
  functions = toset(["intake", "tick", "notify", "deadletter"])

  # What those that call the control plane are there. Events go to the outside alone.
  function_role = { intake = "submitter", tick = "viewer", deadletter = "worker" }

  function_env = {
    for name in local.functions :
    name => merge({ ERRAND_URL = local.control_url }, lookup(var.functions_env, name, {}))
  }

  # How Pub/Sub reaches a function: as the one account that may call it.
  push = {
    for name in local.functions :
    name => {
      endpoint = module.function[name].uri
      account  = google_service_account.caller[name].email
      audience = module.function[name].uri
    }
  }
}

module "function" {
  source   = "./modules/function"
  for_each = local.functions

  project  = var.project
  region   = var.region
  name     = "${var.prefix}-fn-${each.key}"
  image    = local.image["functions"]
  account  = google_service_account.function[each.key].email
  target   = each.key
  env      = local.function_env[each.key]
  labels   = local.labels
  invokers = { caller = google_service_account.caller[each.key].member }
}

# The safety net of all timers: once a minute, whatever else is asleep. Early, late and double ticks are harmless.
resource "google_cloud_scheduler_job" "tick" {
  project          = var.project
  region           = var.region
  name             = "${var.prefix}-tick"
  description      = "Wakes the control plane"
  schedule         = "* * * * *"
  time_zone        = "Etc/UTC"
  attempt_deadline = "30s"

  retry_config {
    retry_count = 0 # the next minute is the retry
  }

  http_target {
    uri         = module.function["tick"].uri
    http_method = "POST"

    oidc_token {
      service_account_email = google_service_account.caller["tick"].email
      audience              = module.function["tick"].uri
    }
  }
}
