output "name" {
  description = "Name of the job."
  value       = google_cloud_run_v2_job.this.name
}

output "id" {
  description = "projects/P/locations/R/jobs/NAME."
  value       = google_cloud_run_v2_job.this.id
}
