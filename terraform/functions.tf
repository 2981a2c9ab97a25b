# Functions: the edges of the control plane. Each is a service of its own from one image, and calls the control plane as
# itself.

locals {
  functions = toset(concat(["intake", "tick", "deadletter"], var.notify == null ? [] : ["notify"]))

  # What those that call the control plane are there. Events go to the outside alone.
  function_role = { intake = "submitter", tick = "edge", deadletter = "edge" }

  function_env = {
    for name in local.functions :
    name => merge({ ERRAND_URL = local.control_url }, name == "notify" ? local.notify_env : {}, lookup(var.functions_env, name, {}))
  }

  notify_env = var.notify == null ? {} : { for k, v in {
    ERRAND_NOTIFY_URL   = var.notify.url
    ERRAND_NOTIFY_FORM  = var.notify.form
    ERRAND_NOTIFY_TYPES = length(var.notify.types) == 0 ? null : join(",", var.notify.types)
    ERRAND_NOTIFY_KEYS  = "env:NOTIFY_KEY"
  } : k => v if v != null }

  # Secrets of the notify function, by the variable that each fills.
  notify_secrets = var.notify == null ? {} : merge(
    { NOTIFY_KEY = google_secret_manager_secret.notify_key[0].secret_id },
    var.notify.url_secret == null ? {} : { ERRAND_NOTIFY_URL = var.notify.url_secret },
  )

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
  secrets  = each.key == "notify" ? local.notify_secrets : {}
  labels   = local.labels
  invokers = { caller = google_service_account.caller[each.key].member }

  depends_on = [google_secret_manager_secret_iam_member.notify]
}

# The key that events are signed with. As with the signing key, an operator adds its versions.
resource "google_secret_manager_secret" "notify_key" {
  count = var.notify == null ? 0 : 1

  project   = var.project
  secret_id = "${var.prefix}-notify-key"

  replication {
    auto {}
  }
}

resource "google_secret_manager_secret_iam_member" "notify" {
  for_each = var.notify == null ? {} : { for k, v in { key = "${var.prefix}-notify-key", url = var.notify.url_secret } : k => v if v != null }

  project   = var.project
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.function["notify"].member

  depends_on = [google_secret_manager_secret.notify_key]
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
