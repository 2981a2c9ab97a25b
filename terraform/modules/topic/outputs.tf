output "topic" {
  description = "The topic, as projects/P/topics/T."
  value       = var.existing_topic == null ? google_pubsub_topic.this[0].id : var.existing_topic
}

output "subscription" {
  description = "Name of the subscription."
  value       = google_pubsub_subscription.this.name
}
