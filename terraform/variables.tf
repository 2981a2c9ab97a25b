# What an installation may choose. The values of yours stand in errand.auto.tfvars.

variable "project" {
  type        = string
  description = "Id of the project that everything is made in."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "A project id has 6 to 30 lower-case letters, digits and hyphens, and begins with a letter. It is the id, not the number and not the name."
  }
}

variable "region" {
  type        = string
  description = "Region of the Cloud Run workloads, of the image repository and of the scheduler."

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "A region looks like europe-west1; a zone (europe-west1-b) is none."
  }
}

variable "firestore_location" {
  type        = string
  default     = null
  description = "Location of the database, which can never be changed: a region or a multi-region such as eur3. The region, unless given."
}

variable "prefix" {
  type        = string
  default     = "errand"
  description = "Begins the name of every resource and of every Pub/Sub topic. Two installations in a project need two."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,10}[a-z0-9]$", var.prefix)) && !startswith(var.prefix, "goog")
    error_message = "The prefix has 3 to 12 lower-case letters, digits and hyphens, begins with a letter and ends without a hyphen; Pub/Sub reserves goog."
  }
}

variable "fleet" {
  type        = list(string)
  default     = ["../examples/invoices/fleet.yaml"]
  description = "Manifests, relative to this folder: files, or folders whose *.yaml are read. Every document of kind Agent becomes a workload of its shape with its own identity."

  validation {
    condition     = alltrue([for f in var.fleet : can(regex("\\.ya?ml$", f)) ? try(fileexists("${path.root}/${f}"), false) : try(length(fileset("${path.root}/${f}", "*.{yaml,yml}")) > 0, false)])
    error_message = "A manifest does not exist, or a folder has none: paths are relative to the folder terraform/."
  }
}

variable "agents" {
  type = map(object({
    image   = string
    env     = optional(map(string), {})
    secrets = optional(map(string), {})
    callers = optional(list(string), [])
  }))
  default     = {}
  description = <<-EOT
    What the manifests do not say, by agent: its image (a name such as checker in this installation's repository, or a
    whole reference with a slash), more environment, variables that are filled from the newest version of a secret
    (variable => id of an existing secret in this project), and IAM members that may call a service directly.
  EOT

  validation {
    condition     = alltrue([for a in values(var.agents) : can(regex("^[a-z0-9][a-z0-9._/:@-]*$", a.image))])
    error_message = "An image is a name (checker) or a reference (REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…)."
  }
  validation {
    condition     = alltrue(flatten([for a in values(var.agents) : [for m in a.callers : can(regex("^(user|serviceAccount|group|domain|principal|principalSet):.+$", m))]]))
    error_message = "A caller is an IAM member such as group:clerks@example.com. Agents are never public: allUsers and allAuthenticatedUsers are refused."
  }
  validation {
    condition     = alltrue(flatten([for a in values(var.agents) : [for k, _ in merge(a.env, a.secrets) : k != "PORT" && !startswith(k, "ERRAND_")]]))
    error_message = "PORT and ERRAND_… are set by this configuration; choose other names in env and secrets."
  }
}

variable "images" {
  type        = map(string)
  default     = {}
  description = "Whole references of this repository's images by name (control, functions, worker, checker, …), where they are not REPOSITORY/NAME:image_tag. Only the first apply uses images: from then on the build deploys them."
}

variable "image_tag" {
  type        = string
  default     = "latest"
  description = "Tag of the images that the first apply starts."
}

variable "control" {
  type = object({
    min_instances = optional(number, 1)
    max_instances = optional(number, 3)
    cpu           = optional(string, "1")
    memory        = optional(string, "1Gi")
    ingress       = optional(string, "INGRESS_TRAFFIC_ALL")
    iam_check     = optional(bool, false)
    url           = optional(string)
    invokers      = optional(list(string), [])
    env           = optional(map(string), {})
  })
  default     = {}
  description = <<-EOT
    The control plane. With min_instances 0 it stops when nobody asks; the tick starts it each minute, and timers are
    that coarse. url is its address where it has a domain of its own. iam_check makes Cloud Run ask for run.invoker
    before a request arrives; Cloud Run then takes the identity token's signature away, so it needs callers that send
    X-Serverless-Authorization beside Authorization. Either way the control plane checks every request itself.
  EOT

  validation {
    condition     = var.control.min_instances >= 0 && var.control.min_instances <= var.control.max_instances && var.control.max_instances >= 1 && var.control.max_instances <= 100
    error_message = "control: 0 <= min_instances <= max_instances, and max_instances is 1 to 100."
  }
  validation {
    condition     = contains(["INGRESS_TRAFFIC_ALL", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"], var.control.ingress)
    error_message = "control.ingress is INGRESS_TRAFFIC_ALL, INGRESS_TRAFFIC_INTERNAL_ONLY or INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER."
  }
  validation {
    condition     = var.control.url == null || can(regex("^https://[^/]+$", var.control.url))
    error_message = "control.url is https://HOST, without a path."
  }
  validation {
    condition     = alltrue([for m in var.control.invokers : can(regex("^(user|serviceAccount|group|domain|principal|principalSet):.+$", m))])
    error_message = "control.invokers are IAM members such as group:operators@example.com; allUsers and allAuthenticatedUsers are refused."
  }
}

variable "auth" {
  type = object({
    google_audiences = optional(list(string), [])
    issuers = optional(list(object({
      issuer            = string
      audiences         = list(string)
      jwksURL           = optional(string)
      header            = optional(string)
      authorizedParties = optional(list(string))
      groupsClaim       = optional(string)
      emailsVerified    = optional(bool)
    })), [])
    principals = optional(list(object({
      email       = optional(string)
      emailDomain = optional(string)
      subject     = optional(string)
      group       = optional(string)
      issuer      = optional(string)
      role        = string
      tenants     = optional(list(string))
      agents      = optional(list(string))
    })), [])
  })
  default     = {}
  description = <<-EOT
    Who else may call the control plane, beside the accounts that are made here: issuers and principals as ERRAND_AUTH=oidc:FILE
    has them, the first principal that fits counts. Google is an issuer already; google_audiences are further audiences of its
    tokens, such as that of gcloud, whose user tokens are for no other.
  EOT

  validation {
    condition     = alltrue([for p in var.auth.principals : contains(["viewer", "submitter", "approver", "operator", "admin", "worker", "edge"], p.role)])
    error_message = "A role is viewer, submitter, approver, operator, admin, worker or edge."
  }
  validation {
    condition     = alltrue([for p in var.auth.principals : length([for v in [p.email, p.emailDomain, p.subject, p.group] : v if v != null]) == 1])
    error_message = "A principal has exactly one of email, emailDomain, subject and group."
  }
}

variable "signing_key_versions" {
  type        = list(string)
  default     = ["1"]
  description = "Versions of the signing key's secret that are mounted: the first signs attempt tokens, all of them verify. A rotation goes over [\"1\", \"2\"] and [\"2\", \"1\"] to [\"2\"]; docs/guides/deploy.md says when."

  validation {
    condition     = length(var.signing_key_versions) >= 1 && length(var.signing_key_versions) <= 2 && alltrue([for v in var.signing_key_versions : can(regex("^[1-9][0-9]*$", v))]) && length(distinct(var.signing_key_versions)) == length(var.signing_key_versions)
    error_message = "Name one or two different versions by number, the one that signs first; latest would change under a running process."
  }
}

variable "instance_regions" {
  type        = set(string)
  default     = []
  description = "Regions that have Cloud Run instances, a preview. Elsewhere an agent of shape instance is a service that is always one container."
}

variable "job_runs" {
  type        = number
  default     = 50
  description = "Most runs of a job agent at a time, where its manifest sets no concurrency.max. A region allows some hundred running executions."

  validation {
    condition     = var.job_runs >= 1 && var.job_runs <= 1000
    error_message = "job_runs is 1 to 1000."
  }
}

variable "notify" {
  type = object({
    url        = optional(string)
    url_secret = optional(string)
    form       = optional(string, "event")
    types      = optional(list(string), [])
  })
  default     = null
  description = <<-EOT
    Webhook that is told what happens to runs, signed with a key that an operator adds to the secret PREFIX-notify-key. url_secret
    is the id of a secret that holds the address, where the address is one. form is event (CloudEvents) or chat (a text); types
    are the events that are told, all when empty. Nobody is told when null.
  EOT

  validation {
    condition     = var.notify == null ? true : (var.notify.url == null) != (var.notify.url_secret == null)
    error_message = "notify has either url or url_secret."
  }
  validation {
    condition     = try(var.notify.url, null) == null ? true : can(regex("^https://[^/@#]+(/[^#]*)?$", var.notify.url))
    error_message = "notify.url is https://HOST/PATH, without credentials."
  }
  validation {
    condition     = var.notify == null ? true : contains(["event", "chat"], var.notify.form)
    error_message = "notify.form is event or chat."
  }
}

variable "functions_env" {
  type        = map(map(string))
  default     = {}
  description = "More environment by function: intake, tick, notify, deadletter."

  validation {
    condition     = alltrue([for f in keys(var.functions_env) : contains(["intake", "tick", "notify", "deadletter"], f)])
    error_message = "The functions are intake, tick, notify and deadletter."
  }
}

variable "protect" {
  type        = bool
  default     = true
  description = "Keeps the database and the signing key's secret from being destroyed. Set it to false, and apply, before a teardown."
}

variable "point_in_time_recovery" {
  type        = bool
  default     = true
  description = "Keeps seven days of the database to read back. It costs storage."
}

variable "notification_channels" {
  type        = list(string)
  default     = []
  description = "Monitoring channels that alerts go to, as projects/P/notificationChannels/ID."

  validation {
    condition     = alltrue([for c in var.notification_channels : can(regex("^projects/[^/]+/notificationChannels/[^/]+$", c))])
    error_message = "A channel is projects/PROJECT/notificationChannels/ID."
  }
}

variable "alerts" {
  type = object({
    queue_age        = optional(number, 600)
    unschedulable    = optional(number, 900)
    no_progress      = optional(number, 900)
    unacked_age      = optional(number, 300)
    http_error_share = optional(number, 0.05)
  })
  default     = {}
  description = "Limits of the alerts. queue_age: of the longest wait for a slot; unschedulable: how long a run may be that; no_progress: how long none may end while some wait; unacked_age: of the oldest message of a subscription. All in seconds. http_error_share: of answers 5xx."

  validation {
    condition     = alltrue([for s in [var.alerts.queue_age, var.alerts.unschedulable, var.alerts.no_progress, var.alerts.unacked_age] : s >= 60 && s <= 82800]) && var.alerts.http_error_share > 0 && var.alerts.http_error_share < 1
    error_message = "Alert limits are 60 to 82800 seconds, and a share between 0 and 1."
  }
}

variable "metrics_sidecar" {
  type        = string
  default     = "us-docker.pkg.dev/cloud-ops-agents-artifacts/cloud-run-gmp-sidecar/cloud-run-gmp-sidecar:1.2.0"
  description = "Image of the collector that brings the control plane's figures to Cloud Monitoring, as Managed Service for Prometheus has it."
}

variable "repository" {
  type        = string
  default     = null
  description = "Repository to build from on each push to main, as projects/P/locations/R/connections/C/repositories/N; no trigger is made without it."

  validation {
    condition     = var.repository == null || can(regex("^projects/[^/]+/locations/[^/]+/connections/[^/]+/repositories/[^/]+$", var.repository))
    error_message = "The repository is projects/PROJECT/locations/REGION/connections/CONNECTION/repositories/NAME."
  }
}
