# Topics, each with the subscription of its name. Order and truth are the store's: a message is a hint or a hand-over.

locals {
  publish = { control = google_service_account.control.member }
}

# Facts for the process that decides.
module "topic_control" {
  source = "./modules/topic"

  project      = var.project
  name         = "${var.prefix}-control"
  ack_deadline = 10
  retention    = "600s" # an old hint is worth nothing: whoever leads reads the store
  pubsub_agent = local.pubsub_agent
  publishers   = local.publish
  subscribers  = { control = google_service_account.control.member }
}

# What happened to runs, for the outside. Where nobody is told, it is kept for ten minutes, and then forgotten.
module "topic_events" {
  source = "./modules/topic"

  project      = var.project
  name         = "${var.prefix}-events"
  retention    = var.notify == null ? "600s" : "604800s"
  dead_letters = { topic = module.topic_deadletter.topic }
  pubsub_agent = local.pubsub_agent
  publishers   = local.publish
  push         = var.notify == null ? null : local.push["notify"]
}

# What was delivered too often: the function records it. It is the end of the line and has no dead letters of its own.
module "topic_deadletter" {
  source = "./modules/topic"

  project      = var.project
  name         = "${var.prefix}-deadletter"
  pubsub_agent = local.pubsub_agent
  publishers   = { pubsub = local.pubsub_agent }
  push         = local.push["deadletter"]
}

# Hand-overs to the workers of a pool, which alone may take them.
module "topic_pool" {
  source   = "./modules/topic"
  for_each = local.pools

  project      = var.project
  name         = "${var.prefix}-pool-${each.key}"
  ack_deadline = 10 # a worker claims, then acknowledges; what one that died had is soon there for others
  dead_letters = { topic = module.topic_deadletter.topic }
  pubsub_agent = local.pubsub_agent
  publishers   = local.publish
  subscribers  = { worker = google_service_account.agent[each.key].member }
}

# Messages that start runs, as documents of kind Trigger declare it. A topic that is named by itself is made here, for others
# to publish to; projects/P/topics/T is somebody else's, who lets this installation subscribe.
locals {
  triggers       = { for i, d in local.documents : d.metadata.name => d.spec.pubsub.topic if local.is[i] == "Trigger" && can(d.spec.pubsub.topic) }
  trigger_topics = toset([for topic in values(local.triggers) : topic if !startswith(topic, "projects/")])
}

resource "google_pubsub_topic" "trigger" {
  for_each = local.trigger_topics

  project = var.project
  name    = each.key
}

module "topic_trigger" {
  source   = "./modules/topic"
  for_each = local.triggers

  project        = var.project
  name           = "${var.prefix}-trigger-${each.key}"
  existing_topic = contains(local.trigger_topics, each.value) ? google_pubsub_topic.trigger[each.value].id : each.value
  of_another     = true
  dead_letters   = { topic = module.topic_deadletter.topic }
  pubsub_agent   = local.pubsub_agent
  push           = merge(local.push["intake"], { endpoint = "${local.push["intake"].endpoint}?trigger=${each.key}" })
}
