# The fleet as manifests declare it: every document of kind Agent becomes a workload of its shape.

locals {
  # 1. Files, and documents in them. A line of three hyphens ends a document; one that holds only comments is none.
  manifest_files = distinct(flatten([
    for f in var.fleet : can(regex("\\.ya?ml$", f)) ? [f] : [for n in sort(fileset("${path.root}/${f}", "*.{yaml,yml}")) : "${f}/${n}"]
  ]))
  manifest_texts = flatten([
    for f in local.manifest_files : [
      for text in split("\n---\n", replace("\n${replace(file("${path.root}/${f}"), "\r\n", "\n")}\n", "/\\n---[ \\t]*(#[^\\n]*)?(\\n|$)/", "\n---\n")) :
      text if trimspace(replace("\n${text}", "/\\n[ \\t]*#[^\\n]*/", "")) != ""
    ]
  ])
  documents = [for text in local.manifest_texts : yamldecode(text)]
  is        = [for d in local.documents : try(d.apiVersion, "") == "errand.dev/v1" ? try(tostring(d.kind), "") : ""]

  # 2. Agents by name. A name that stands twice fails here, and says so.
  agent_documents = { for i, d in local.documents : d.metadata.name => d if local.is[i] == "Agent" }
  agent_texts     = { for i, d in local.documents : d.metadata.name => local.manifest_texts[i] if local.is[i] == "Agent" }

  # 3. Quantities: text in manifests, numbers here. Units are those of the manifests.
  seconds = { ns = 0.000000001, us = 0.000001, ms = 0.001, s = 1, m = 60, h = 3600, d = 86400, w = 604800 }
  bytes   = { "" = 1, k = 1000, M = 1000000, G = 1000000000, T = 1000000000000, Ki = 1024, Mi = 1048576, Gi = 1073741824, Ti = 1099511627776 }
  stated = {
    for name, d in local.agent_documents : name => {
      shape       = d.spec.shape
      slots       = try(tonumber(d.spec.run.slots), 1)
      attempt     = ceil(sum(concat([0], [for p in regexall("([0-9.]+)(ns|us|ms|s|m|h|d|w)", tostring(try(d.spec.timeouts.attempt, "0s"))) : tonumber(p[0]) * local.seconds[p[1]]])))
      milli       = endswith(tostring(try(d.spec.needs.cpu, "0")), "m") ? tonumber(trimsuffix(d.spec.needs.cpu, "m")) : ceil(1000 * tonumber(try(d.spec.needs.cpu, 0)))
      memory      = ceil(tonumber(regex("^([0-9.]+)([a-zA-Z]*)$", tostring(try(d.spec.needs.memory, "0")))[0]) * local.bytes[regex("^([0-9.]+)([a-zA-Z]*)$", tostring(try(d.spec.needs.memory, "0")))[1]])
      accelerator = try(d.spec.needs.accelerator, "") == "" ? null : d.spec.needs.accelerator
      regions     = try(d.spec.needs.regions, [])
      identity    = try(d.spec.identity, "")
      most        = try(tonumber(d.spec.concurrency.max), 0)
      min         = try(tonumber(d.spec.scale.min), 0)
      max         = try(tonumber(d.spec.scale.max), 0)
    }
  }

  # 4. Containers. What a run needs is needed once for each slot. Cloud Run has steps of processor, wants a minimum of it
  #    for much memory and a minimum of memory for much of it.
  steps      = [1, 2, 4, 6, 8]
  memory_cpu = [{ over = 4, cpu = 2 }, { over = 8, cpu = 4 }, { over = 16, cpu = 6 }, { over = 24, cpu = 8 }]
  cpu_memory = { 1 = 0.5, 2 = 0.5, 4 = 2, 6 = 4, 8 = 4 }
  sized = {
    for name, s in local.stated : name => {
      slots = s.shape == "job" ? 1 : s.slots
      gib   = max(0.5, s.memory * (s.shape == "job" ? 1 : s.slots) / 1073741824, s.accelerator == null ? 0 : 16)
      cores = max(1, s.milli * (s.shape == "job" ? 1 : s.slots) / 1000, s.accelerator == null ? 0 : 4)
    }
  }
  stepped = {
    for name, s in local.sized : name => merge(s, {
      cpu = try(min([for c in local.steps : c if c >= max(concat([s.cores], [for m in local.memory_cpu : m.cpu if s.gib > m.over])...)]...), 0)
    })
  }

  # 5. Names. Accounts have 30 characters at most and workloads 49; a longer one is cut and told apart by a hash. An agent
  #    whose manifest states an identity in this project gets the account of that name.
  agents = {
    for name, s in local.stated : name => merge(s, local.stepped[name], {
      workload = (length("${var.prefix}-agent-${name}") <= 49 ? "${var.prefix}-agent-${name}" :
      "${trim(substr("${var.prefix}-agent-${name}", 0, 40), "-")}-${substr(sha256(name), 0, 8)}")
      account_id = try(regex("^([a-z][a-z0-9-]{4,28}[a-z0-9])@${var.project}[.]iam[.]gserviceaccount[.]com$", s.identity)[0],
        length("${var.prefix}-agent-${name}") <= 30 ? "${var.prefix}-agent-${name}" :
      "${trim(substr("${var.prefix}-agent-${name}", 0, 21), "-")}-${substr(sha256(name), 0, 8)}")

      image   = try(local.image[var.agents[name].image], var.agents[name].image, null)
      env     = merge(try(var.agents[name].env, {}), { ERRAND_URL = local.control_url, ERRAND_AGENT = name })
      secrets = try(var.agents[name].secrets, {})
      callers = try(var.agents[name].callers, [])
      limits = merge(
        { cpu = tostring(local.stepped[name].cpu), memory = "${ceil(1024 * max(local.stepped[name].gib, lookup(local.cpu_memory, local.stepped[name].cpu, 0)))}Mi" },
        s.accelerator == null ? {} : { "nvidia.com/gpu" = "1" },
      )
    })
  }

  # 6. By shape. Where a region has no instances, one is a service that is always exactly one container.
  has_instances = contains(var.instance_regions, var.region)
  instances     = { for name, a in local.agents : name => a if a.shape == "instance" && local.has_instances }
  pools         = { for name, a in local.agents : name => a if a.shape == "pool" }
  jobs          = { for name, a in local.agents : name => a if a.shape == "job" }
  services = { for name, a in local.agents : name => merge(a, {
    least     = a.shape == "instance" ? 1 : a.min
    most      = a.shape == "instance" ? 1 : a.max > 0 ? a.max : 10
    always_on = a.shape == "instance"
  }) if a.shape == "service" || (a.shape == "instance" && !local.has_instances) }

  pool_instances = { for name, a in local.pools : name => a.max > 0 ? a.max : 10 }
}

# What a platform cannot hold is said before anything is made.
resource "terraform_data" "fleet" {
  for_each = local.agents

  input = each.value.workload

  lifecycle {
    precondition {
      condition     = contains(["service", "instance", "pool", "job"], each.value.shape)
      error_message = "Agent ${each.key}: spec.shape is ${each.value.shape}; want service, instance, pool or job."
    }
    precondition {
      condition     = each.value.image != null
      error_message = "Agent ${each.key} has no image: add it to the variable agents, such as agents = { \"${each.key}\" = { image = \"NAME\" } }."
    }
    precondition {
      condition     = each.value.identity == "" || endswith(each.value.identity, "@${var.project}.iam.gserviceaccount.com")
      error_message = "Agent ${each.key}: spec.identity is ${each.value.identity}, an account of another project; leave it out, or name one of ${var.project} that is made for this agent alone."
    }
    precondition {
      condition     = length([for a in local.agents : a if a.account_id == each.value.account_id]) == 1
      error_message = "Agent ${each.key}: another agent has the identity ${each.value.account_id} too; each has its own."
    }
    precondition {
      condition     = each.value.identity != "" || can(regex(local.spec_line, local.agent_texts[each.key]))
      error_message = "Agent ${each.key}: write spec: on a line of its own, so that its identity can be added to it, or state spec.identity."
    }
    precondition {
      condition     = each.value.cpu > 0 && each.value.gib <= 32
      error_message = "Agent ${each.key} needs ${each.value.cores} cores and ${each.value.gib} GiB with ${each.value.slots} slots; a container has 8 cores and 32 GiB at most. Lower spec.needs or spec.run.slots."
    }
    precondition {
      condition     = each.value.shape != "service" || each.value.attempt <= 3570
      error_message = "Agent ${each.key}: a request to a service ends after 60 minutes, so spec.timeouts.attempt may be 59m30s at most; ${each.value.attempt} s needs shape job or pool."
    }
    precondition {
      condition     = each.value.shape != "job" || each.value.attempt <= 604500
      error_message = "Agent ${each.key}: a task of a job ends after 168 hours; spec.timeouts.attempt is ${each.value.attempt} s."
    }
    precondition {
      condition     = length(each.value.regions) == 0 || contains(each.value.regions, var.region)
      error_message = "Agent ${each.key} may run in ${join(", ", each.value.regions)} only, and this installation is in ${var.region}."
    }
    precondition {
      condition     = each.value.shape != "instance" || !local.has_instances || (length(each.value.secrets) == 0 && each.value.accelerator == null)
      error_message = "Agent ${each.key}: an instance takes neither secrets nor an accelerator here yet; leave this region out of instance_regions, so that it is a service with one container."
    }
  }
}

module "agent_service" {
  source   = "./modules/service"
  for_each = local.services

  project       = var.project
  region        = var.region
  name          = each.value.workload
  image         = each.value.image
  account       = google_service_account.agent[each.key].email
  env           = merge(each.value.env, { ERRAND_PROTOCOL = "http", ERRAND_SLOTS = tostring(each.value.slots) })
  secrets       = each.value.secrets
  limits        = each.value.limits
  accelerator   = each.value.accelerator
  concurrency   = each.value.slots
  timeout       = each.value.attempt > 0 ? min(3600, each.value.attempt + 30) : 3600
  min_instances = each.value.least
  max_instances = each.value.most
  always_on     = each.value.always_on
  labels        = merge(local.labels, { agent = each.key })
  invokers = merge(
    { control = google_service_account.control.member },
    { for m in each.value.callers : m => m },
  )

  depends_on = [terraform_data.fleet, google_secret_manager_secret_iam_member.agent]
}

module "agent_instance" {
  source   = "./modules/instance"
  for_each = local.instances

  project = var.project
  region  = var.region
  name    = each.value.workload
  image   = each.value.image
  account = google_service_account.agent[each.key].email
  env     = merge(each.value.env, { ERRAND_PROTOCOL = "http", ERRAND_SLOTS = tostring(each.value.slots) })
  invokers = merge(
    { control = google_service_account.control.member },
    { for m in each.value.callers : m => m },
  )

  depends_on = [terraform_data.fleet]
}

module "agent_pool" {
  source   = "./modules/pool"
  for_each = local.pools

  project      = var.project
  region       = var.region
  name         = each.value.workload
  image        = each.value.image
  account      = google_service_account.agent[each.key].email
  env          = merge(each.value.env, { ERRAND_SLOTS = tostring(each.value.slots) })
  secrets      = each.value.secrets
  limits       = each.value.limits
  accelerator  = each.value.accelerator
  instances    = max(1, each.value.min)
  labels       = merge(local.labels, { agent = each.key })
  worker_image = local.image["worker"]
  worker_env = {
    ERRAND_URL    = local.control_url
    ERRAND_BUS    = "pubsub:${var.project}/${var.prefix}"
    ERRAND_TARGET = each.key
    ERRAND_AGENT  = each.key
    ERRAND_SLOTS  = tostring(each.value.slots)
  }

  depends_on = [terraform_data.fleet, google_secret_manager_secret_iam_member.agent]
}

module "agent_job" {
  source   = "./modules/job"
  for_each = local.jobs

  project     = var.project
  region      = var.region
  name        = each.value.workload
  image       = each.value.image
  account     = google_service_account.agent[each.key].email
  env         = each.value.env
  secrets     = each.value.secrets
  limits      = each.value.limits
  accelerator = each.value.accelerator
  timeout     = each.value.attempt > 0 ? each.value.attempt + 300 : 604800
  labels      = merge(local.labels, { agent = each.key })

  depends_on = [terraform_data.fleet, google_secret_manager_secret_iam_member.agent]
}

# What the control plane may do to each workload. Calling a service or an instance is run.invoker, in its module.
resource "google_cloud_run_v2_service_iam_member" "control" {
  for_each = local.services

  project  = var.project
  location = var.region
  name     = module.agent_service[each.key].name
  role     = local.workload_role["service"]
  member   = google_service_account.control.member
}

resource "google_cloud_run_v2_instance_iam_member" "control" {
  for_each = local.instances

  project  = var.project
  location = var.region
  name     = module.agent_instance[each.key].name
  role     = local.workload_role["instance"]
  member   = google_service_account.control.member
}

resource "google_cloud_run_v2_worker_pool_iam_member" "control" {
  for_each = local.pools

  project  = var.project
  location = var.region
  name     = module.agent_pool[each.key].name
  role     = local.workload_role["pool"]
  member   = google_service_account.control.member
}

# Changing a worker pool, be it the number alone, is deploying it as its account.
resource "google_service_account_iam_member" "control_scales" {
  for_each = local.pools

  service_account_id = google_service_account.agent[each.key].name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.control.member
}

resource "google_cloud_run_v2_job_iam_member" "control" {
  for_each = local.jobs

  project  = var.project
  location = var.region
  name     = module.agent_job[each.key].name
  role     = local.workload_role["job"]
  member   = google_service_account.control.member
}

# Secrets of an agent are its own to read.
locals {
  agent_secrets = merge([
    for name, a in local.agents : { for secret in toset(values(a.secrets)) : "${name}/${secret}" => { agent = name, secret = secret } }
  ]...)
}

resource "google_secret_manager_secret_iam_member" "agent" {
  for_each = local.agent_secrets

  project   = var.project
  secret_id = each.value.secret
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.agent[each.value.agent].member
}
