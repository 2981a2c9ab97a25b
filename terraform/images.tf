# Images: where they are kept, and which one each process starts with. From the first apply on the build deploys them.

locals {
  labels = { app = "errand", installation = var.prefix }

  # Every main of this repository that runs in the cloud by itself, beside the agents.
  processes = ["control", "functions", "worker"]

  # By name: what the variable says, or the repository's image of that name.
  image = {
    for name in toset(concat(local.processes, [for a in values(var.agents) : a.image if !strcontains(a.image, "/")])) :
    name => lookup(var.images, name, "${module.registry.url}/${name}:${var.image_tag}")
  }
}

module "registry" {
  source = "./modules/registry"

  project  = var.project
  location = var.region
  name     = var.prefix
  writers  = { build = google_service_account.build.member }
}
