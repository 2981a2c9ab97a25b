output "name" {
  description = "Id of the database, known once it exists."
  value       = google_firestore_database.this.name
}

output "resource" {
  description = "projects/P/databases/D, as conditions of grants name it."
  value       = "projects/${var.project}/databases/${google_firestore_database.this.name}"
}
