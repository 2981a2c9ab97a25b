# A topic and its subscription of the same name: pulled, or pushed to a function.

resource "google_pubsub_topic" "this" {
  count = var.of_another ? 0 : 1

  project = var.project
  name    = var.name
}

resource "google_pubsub_subscription" "this" {
  project                    = var.project
  name                       = var.name
  topic                      = var.of_another ? var.existing_topic : google_pubsub_topic.this[0].id
  ack_deadline_seconds       = var.ack_deadline
  message_retention_duration = var.retention

  # A quiet month must not take a queue away: without this, 31 days without a receiver would.
  expiration_policy {
    ttl = ""
  }

  # Who pulls paces what failed by itself; and what it gives back for want of a free slot must go to another at once.
  dynamic "retry_policy" {
    for_each = var.push == null ? [] : [1]
    content {
      minimum_backoff = "10s"
      maximum_backoff = "600s"
    }
  }

  dynamic "dead_letter_policy" {
    for_each = var.dead_letters == null ? [] : [var.dead_letters]
    content {
      dead_letter_topic     = dead_letter_policy.value.topic
      max_delivery_attempts = var.max_delivery_attempts
    }
  }

  dynamic "push_config" {
    for_each = var.push == null ? [] : [var.push]
    content {
      push_endpoint = push_config.value.endpoint

      oidc_token {
        service_account_email = push_config.value.account
        audience              = push_config.value.audience
      }
    }
  }
}

# Dead lettering is done by Pub/Sub's own agent: it takes from the subscription and publishes to the dead letters, and
# without both grants messages are delivered again for ever.
resource "google_pubsub_subscription_iam_member" "dead_letters" {
  count = var.dead_letters == null ? 0 : 1

  project      = var.project
  subscription = google_pubsub_subscription.this.name
  role         = "roles/pubsub.subscriber"
  member       = var.pubsub_agent
}

resource "google_pubsub_topic_iam_member" "publisher" {
  for_each = var.of_another ? {} : var.publishers

  project = var.project
  topic   = google_pubsub_topic.this[0].name
  role    = "roles/pubsub.publisher"
  member  = each.value
}

resource "google_pubsub_subscription_iam_member" "subscriber" {
  for_each = var.subscribers

  project      = var.project
  subscription = google_pubsub_subscription.this.name
  role         = "roles/pubsub.subscriber"
  member       = each.value
}
