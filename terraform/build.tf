# The build: what it may put images into, and the trigger that starts it.

locals {
  # Which image each workload is of, as WORKLOAD=IMAGE, or WORKLOAD/CONTAINER=IMAGE where it has several. Images of other
  # repositories are not this build's to deploy.
  built = { for name, a in local.agents : name => var.agents[name].image if try(!strcontains(var.agents[name].image, "/"), false) }
  deployed = {
    _SERVICES = concat(
      ["${local.control_name}/control=control"],
      [for f in local.functions : "${var.prefix}-fn-${f}=functions"],
      [for name, a in local.services : "${a.workload}=${local.built[name]}" if contains(keys(local.built), name)],
    )
    _JOBS  = [for name, a in local.jobs : "${a.workload}=${local.built[name]}" if contains(keys(local.built), name)]
    _POOLS = flatten([for name, a in local.pools : concat(contains(keys(local.built), name) ? ["${a.workload}/agent=${local.built[name]}"] : [], ["${a.workload}/worker=worker"])])
  }
  substitutions = merge(
    { for k, v in local.deployed : k => join(" ", sort(v)) },
    { _REGION = var.region, _REPOSITORY = var.prefix, _URL = local.control_url, _ACCOUNT = google_service_account.build.email },
  )
}

# The build may change images, and therefore act as each account that it deploys.
resource "google_cloud_run_v2_service_iam_member" "build" {
  for_each = merge(
    { control = module.control.name },
    { for name, f in module.function : "function-${name}" => f.name },
    { for name, s in module.agent_service : "agent-${name}" => s.name },
  )

  project  = var.project
  location = var.region
  name     = each.value
  role     = local.workload_role["deploy"]
  member   = google_service_account.build.member
}

resource "google_cloud_run_v2_worker_pool_iam_member" "build" {
  for_each = local.pools

  project  = var.project
  location = var.region
  name     = module.agent_pool[each.key].name
  role     = local.workload_role["deploy"]
  member   = google_service_account.build.member
}

resource "google_cloud_run_v2_job_iam_member" "build" {
  for_each = local.jobs

  project  = var.project
  location = var.region
  name     = module.agent_job[each.key].name
  role     = local.workload_role["deploy"]
  member   = google_service_account.build.member
}

resource "google_service_account_iam_member" "build_deploys" {
  for_each = merge(
    { control = google_service_account.control.name },
    { for name, f in google_service_account.function : "function-${name}" => f.name },
    { for name, a in google_service_account.agent : "agent-${name}" => a.name },
  )

  service_account_id = each.value
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.build.member
}

# The smoke test asks the control plane as the build itself, which needs an identity token of its own.
resource "google_service_account_iam_member" "build_token" {
  service_account_id = google_service_account.build.name
  role               = "roles/iam.serviceAccountOpenIdTokenCreator"
  member             = google_service_account.build.member
}

resource "google_cloudbuild_trigger" "main" {
  count = var.repository == null ? 0 : 1

  project         = var.project
  location        = var.region
  name            = "${var.prefix}-main"
  description     = "Verify, build, deploy and try main"
  filename        = "cloudbuild.yaml"
  service_account = google_service_account.build.id
  substitutions   = local.substitutions

  repository_event_config {
    repository = var.repository
    push {
      branch = "^main$"
    }
  }
}
