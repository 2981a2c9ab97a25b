# What the control plane must be told of all this: where each agent runs, and as whom.

locals {
  resource = merge(
    { for name, m in module.agent_service : name => m.id },
    { for name, m in module.agent_instance : name => m.id },
    { for name, m in module.agent_pool : name => m.id },
    { for name, m in module.agent_job : name => m.id },
  )

  runs = {
    for name, a in local.agents : name => (
      a.shape == "job" ? (a.most > 0 ? a.most : var.job_runs) :
      a.shape == "pool" ? a.slots * local.pool_instances[name] :
      a.shape == "service" ? a.slots * local.services[name].most : a.slots
    )
  }

  targets = [
    for name, a in local.agents : {
      apiVersion = "errand.dev/v1"
      kind       = "Target"
      metadata   = { name = name }
      spec = merge({
        runtime  = "cloudrun"
        shapes   = [a.shape]
        resource = local.resource[name]
        region   = var.region
        identity = google_service_account.agent[name].email
        capacity = { runs = local.runs[name] }
      }, a.accelerator == null ? {} : { accelerator = a.accelerator })
    }
  ]

  # The fleet again as it was written, for a decoder of YAML 1.1 would make a boolean of retry.on. Each agent that states
  # no identity is given its account: a target takes no agent of another one.
  spec_line = "(?m)^spec:[ \\t]*(?:#[^\\n]*)?\\n([ ]+)"
  identified = [
    for i, text in local.manifest_texts : trim(
      local.is[i] != "Agent" ? text :
      local.agents[local.documents[i].metadata.name].identity != "" ? text :
      replace(text, "/${local.spec_line}/", "spec:\n$${1}identity: ${google_service_account.agent[local.documents[i].metadata.name].email}\n$${1}"),
    "\n") if local.is[i] != "Target"
  ]
}
