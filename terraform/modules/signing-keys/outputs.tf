output "secret" {
  description = "Id of the secret, known once its readers may read it."
  value       = google_secret_manager_secret.this.secret_id
  depends_on  = [google_secret_manager_secret_iam_member.reader]
}
