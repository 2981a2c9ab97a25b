output "name" {
  description = "Name of the service."
  value       = google_cloud_run_v2_service.this.name
}

output "id" {
  description = "projects/P/locations/R/services/NAME."
  value       = google_cloud_run_v2_service.this.id
}
