# Where images are kept. Old ones go; the newest stay however old they are, so that a rollback finds its image.

resource "google_artifact_registry_repository" "this" {
  project       = var.project
  location      = var.location
  repository_id = var.name
  description   = "Images of Errand's processes"
  format        = "DOCKER"

  cleanup_policy_dry_run = false

  cleanup_policies {
    id     = "keep-newest"
    action = "KEEP"
    most_recent_versions {
      keep_count = var.keep
    }
  }

  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"
    condition {
      tag_state  = "ANY"
      older_than = "2592000s"
    }
  }
}

resource "google_artifact_registry_repository_iam_member" "writer" {
  for_each = var.writers

  project    = var.project
  location   = google_artifact_registry_repository.this.location
  repository = google_artifact_registry_repository.this.name
  role       = "roles/artifactregistry.writer"
  member     = each.value
}
