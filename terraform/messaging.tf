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
  publishers   = merge(local.publish, { tick = google_service_account.function["tick"].member })
  subscribers  = { control = google_service_account.control.member }
}

# What happened to runs, for the outside.
module "topic_events" {
  source = "./modules/topic"

  project      = var.project
  name         = "${var.prefix}-events"
  dead_letters = { topic = module.topic_deadletter.topic }
  pubsub_agent = local.pubsub_agent
  publishers   = local.publish
  push         = local.push["notify"]
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
  ack_deadline = 30 # a worker claims, then acknowledges; it does not hold a message while it works
  dead_letters = { topic = module.topic_deadletter.topic }
  pubsub_agent = local.pubsub_agent
  publishers   = local.publish
  subscribers  = { worker = google_service_account.agent[each.key].member }
}

# Messages of others that start runs.
module "topic_trigger" {
  source   = "./modules/topic"
  for_each = var.triggers

  project        = var.project
  name           = "${var.prefix}-trigger-${each.key}"
  existing_topic = each.value.topic
  dead_letters   = { topic = module.topic_deadletter.topic }
  pubsub_agent   = local.pubsub_agent
  push = merge(local.push["intake"], {
    endpoint = join("?", compact([local.push["intake"].endpoint, join("&", [for k, v in each.value.query : "${urlencode(k)}=${urlencode(v)}"])]))
  })
}
