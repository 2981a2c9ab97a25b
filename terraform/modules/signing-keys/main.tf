# The secret of the key that signs attempt tokens. Its versions are added by an operator and never pass through here: a
# payload that Terraform writes would stand in its state.

resource "google_secret_manager_secret" "this" {
  project             = var.project
  secret_id           = var.name
  deletion_protection = var.protect
  version_destroy_ttl = "604800s" # a version that is destroyed by mistake can be had back for a week

  replication {
    auto {}
  }
}

resource "google_secret_manager_secret_iam_member" "reader" {
  for_each = var.readers

  project   = var.project
  secret_id = google_secret_manager_secret.this.secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = each.value
}
