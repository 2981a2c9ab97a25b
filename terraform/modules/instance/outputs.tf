output "name" {
  description = "Name of the instance."
  value       = google_cloud_run_v2_instance.this.name
}

output "id" {
  description = "projects/P/locations/R/instances/NAME."
  value       = google_cloud_run_v2_instance.this.id
}
