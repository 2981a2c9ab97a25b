output "topic" {
  description = "The topic, as projects/P/topics/T."
  value       = var.of_another ? var.existing_topic : google_pubsub_topic.this[0].id
}

output "subscription" {
  description = "Name of the subscription."
  value       = google_pubsub_subscription.this.name
}
