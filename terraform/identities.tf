# One service account for each process, and nothing that two of them share. What each may do is granted on the single
# resource beside the resource itself; what has no resource of its own is granted here.

data "google_project" "this" {
  project_id = var.project
}

locals {
  # Pub/Sub's own agent, which moves dead letters.
  pubsub_agent = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}

resource "google_service_account" "control" {
  project      = var.project
  account_id   = "${var.prefix}-control"
  display_name = "Errand: the control plane"
}

resource "google_service_account" "function" {
  for_each = local.functions

  project      = var.project
  account_id   = "${var.prefix}-fn-${each.key}"
  display_name = "Errand: function ${each.key}"
}

# Who calls a function: Pub/Sub for three of them, the scheduler for the tick. Each may call that function alone.
resource "google_service_account" "caller" {
  for_each = local.functions

  project      = var.project
  account_id   = "${var.prefix}-to-${each.key}"
  display_name = "Errand: calls function ${each.key}"
}

resource "google_service_account" "agent" {
  for_each = local.agents

  project      = var.project
  account_id   = each.value.account_id
  display_name = "Errand: agent ${each.key}"
}

resource "google_service_account" "build" {
  project      = var.project
  account_id   = "${var.prefix}-build"
  display_name = "Errand: builds and deploys images"
}

# The control plane is the only one that reaches the database, and this database alone.
resource "google_project_iam_member" "control_database" {
  project = var.project
  role    = "roles/datastore.user"
  member  = google_service_account.control.member

  condition {
    title       = "${var.prefix} database"
    description = "The control plane's own database and no other"
    expression  = "resource.name == \"${module.firestore.resource}\" || resource.name.startsWith(\"${module.firestore.resource}/\")"
  }
}

# Its collector writes figures, which have no resource to grant on.
resource "google_project_iam_member" "control_metrics" {
  project = var.project
  role    = "roles/monitoring.metricWriter"
  member  = google_service_account.control.member
}

# A build that runs as an account of its own writes its log as that account.
resource "google_project_iam_member" "build_log" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.build.member
}

# What the control plane does to a workload, by shape. The roles are the project's; they are granted on one workload each.
resource "google_project_iam_custom_role" "workload" {
  for_each = { for shape, role in {
    service  = { title = "finds a service", permissions = ["run.services.get"] }
    instance = { title = "finds, starts and stops an instance", permissions = ["run.instances.get", "run.instances.start", "run.instances.stop"] }
    pool     = { title = "scales a worker pool", permissions = ["run.workerpools.get", "run.workerpools.update"] }
    job = {
      title = "runs a job, and follows and cancels its executions"
      permissions = [
        "run.executions.cancel", "run.executions.get", "run.executions.list",
        "run.jobs.get", "run.jobs.run", "run.jobs.runWithOverrides",
        "run.tasks.get", "run.tasks.list",
      ]
    }
    deploy = {
      title       = "puts another image into a workload"
      permissions = ["run.jobs.get", "run.jobs.update", "run.services.get", "run.services.update", "run.workerpools.get", "run.workerpools.update"]
    }
  } : shape => role if shape != "instance" || local.has_instances } # a region without instances need not know their permissions

  project     = var.project
  role_id     = "${replace(var.prefix, "-", "_")}_${each.key}"
  title       = "Errand: ${each.value.title}"
  permissions = each.value.permissions
}

locals {
  workload_role = { for k, r in google_project_iam_custom_role.workload : k => "projects/${r.project}/roles/${r.role_id}" }
}
