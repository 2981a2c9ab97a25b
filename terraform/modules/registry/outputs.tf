output "url" {
  description = "What image names begin with: HOST/PROJECT/REPOSITORY."
  value       = "${var.location}-docker.pkg.dev/${var.project}/${var.name}"
}
