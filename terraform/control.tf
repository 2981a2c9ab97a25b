# The control plane and what it holds: database, signing keys.

locals {
  control_name = "${var.prefix}-control"

  # Cloud Run gives a service this address besides the one with a hash; it can be told before the service exists.
  control_url = coalesce(var.control.url, "https://${local.control_name}-${data.google_project.this.number}.${var.region}.run.app")
}

module "firestore" {
  source = "./modules/firestore"

  project                = var.project
  name                   = var.prefix
  location               = coalesce(var.firestore_location, var.region)
  protect                = var.protect
  point_in_time_recovery = var.point_in_time_recovery
}

module "signing_keys" {
  source = "./modules/signing-keys"

  project = var.project
  name    = "${var.prefix}-signing-key"
  protect = var.protect
  readers = { control = google_service_account.control.member }
}

module "control" {
  source = "./modules/control"

  project         = var.project
  region          = var.region
  name            = local.control_name
  image           = local.image["control"]
  account         = google_service_account.control.email
  min_instances   = var.control.min_instances
  max_instances   = var.control.max_instances
  cpu             = var.control.cpu
  memory          = var.control.memory
  ingress         = var.control.ingress
  iam_check       = var.control.iam_check
  url             = local.control_url
  store           = "firestore:${var.project}/${module.firestore.name}"
  bus             = "pubsub:${var.project}/${var.prefix}"
  runtime         = "cloudrun:${var.project}/${var.region}"
  auth            = local.auth
  key_secret      = module.signing_keys.secret
  key_versions    = var.signing_key_versions
  metrics_sidecar = var.metrics_sidecar
  env             = var.control.env
  labels          = local.labels
  invokers = merge(
    { for name, _ in local.function_role : "function-${name}" => google_service_account.function[name].member },
    { for name, a in google_service_account.agent : "agent-${name}" => a.member },
    { build = google_service_account.build.member },
    { for m in var.control.invokers : m => m },
  )
}

# Who is believed, and who may do what: the accounts that are made here, then whom the variable adds.
locals {
  auth = {
    issuers = concat(
      [{ issuer = "https://accounts.google.com", audiences = concat([local.control_url], var.auth.google_audiences) }],
      [for i in var.auth.issuers : { for k, v in i : k => v if v != null }],
    )
    principals = concat(
      [for name, a in google_service_account.agent : { email = a.email, issuer = "https://accounts.google.com", role = "worker", agents = [name] }],
      [for name, role in local.function_role : { email = google_service_account.function[name].email, issuer = "https://accounts.google.com", role = role }],
      [{ email = google_service_account.build.email, issuer = "https://accounts.google.com", role = "submitter", tenants = ["default"] }],
      [for p in var.auth.principals : { for k, v in p : k => v if v != null }],
    )
  }
}
