output "control_url" {
  description = "Address of the control plane: what ERRAND_SERVER is set to."
  value       = local.control_url
}

output "repository_url" {
  description = "Where the build pushes images: what KO_DOCKER_REPO is set to."
  value       = module.registry.url
}

output "signing_key_secret" {
  description = "Id of the secret that an operator adds signing keys to."
  value       = module.signing_keys.secret
}

output "targets" {
  description = "Target documents, one for each agent, as YAML."
  value       = join("---\n", [for t in local.targets : yamlencode(t)])
}

output "manifests" {
  description = "All that `errand apply` should be given: the fleet's documents, agents with their identity, and the targets, as YAML."
  value       = join("\n---\n", concat(local.identified, [for t in local.targets : yamlencode(t)]))
}

output "auth" {
  description = "What the control plane is told of callers: the file that ERRAND_AUTH names, as JSON. It holds no secret."
  value       = jsonencode(local.auth)
}

output "identities" {
  description = "Service account of each process."
  value = merge(
    { control = google_service_account.control.email, build = google_service_account.build.email },
    { for name, f in google_service_account.function : "function ${name}" => f.email },
    { for name, a in google_service_account.agent : "agent ${name}" => a.email },
  )
}

output "trigger_topics" {
  description = "Topic of each trigger, to publish to."
  value       = { for name, t in module.topic_trigger : name => t.topic }
}

output "build_substitutions" {
  description = "What a build by hand is given with --substitutions."
  value       = join(",", [for k, v in local.substitutions : "${k}=${v}"])
}
