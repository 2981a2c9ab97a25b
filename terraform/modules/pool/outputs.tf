output "name" {
  description = "Name of the worker pool."
  value       = google_cloud_run_v2_worker_pool.this.name
}

output "id" {
  description = "projects/P/locations/R/workerPools/NAME."
  value       = google_cloud_run_v2_worker_pool.this.id
}
