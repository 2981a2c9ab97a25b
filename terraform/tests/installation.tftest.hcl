# The whole, planned for the example fleet. Nothing is reached: the provider is a mock.

mock_provider "google" {
  mock_data "google_project" {
    defaults = {
      number = "123456789012"
    }
  }
}

override_module {
  target = module.firestore
  outputs = {
    name     = "errand"
    resource = "projects/errand-test/databases/errand"
  }
}

variables {
  project = "errand-test"
  region  = "europe-west1"
  fleet   = ["../examples/invoices/fleet.yaml"]
  agents = {
    "invoice-check"     = { image = "checker" }
    "invoice-reconcile" = { image = "reconcile" }
    "concierge"         = { image = "concierge" }
    "ledger"            = { image = "ledger" }
  }
  notify = { url = "https://hooks.example.com/errand" }
}

run "each_shape_has_its_workload" {
  command = plan

  assert {
    condition     = keys(module.agent_service) == ["concierge"] && keys(module.agent_instance) == ["ledger"] && keys(module.agent_pool) == ["invoice-check"] && keys(module.agent_job) == ["invoice-reconcile"]
    error_message = "An agent is not the workload that its shape says."
  }
  assert {
    condition     = keys(google_service_account.agent) == ["concierge", "invoice-check", "invoice-reconcile", "ledger"]
    error_message = "An agent has no account of its own."
  }
  assert {
    condition     = google_service_account.agent["invoice-reconcile"].account_id == "errand-agent-invoice-reconcile"
    error_message = "An account of 30 characters was cut."
  }
  assert {
    condition     = local.control_url == "https://errand-control-123456789012.europe-west1.run.app"
    error_message = "The control plane's address is not the one that Cloud Run gives it."
  }
  assert {
    condition     = local.agents["invoice-check"].limits == { cpu = "1", memory = "1024Mi" }
    error_message = "Eight slots of 100m and 128Mi are one core and 1 GiB."
  }
  assert {
    condition     = strcontains(local.substitutions._POOLS, "errand-agent-invoice-check/worker=worker")
    error_message = "The build does not know the pool's worker."
  }
}

run "without_instances_one_is_a_service_of_one_container" {
  command = plan
  variables {
    instance_regions = []
  }

  assert {
    condition     = length(module.agent_instance) == 0 && local.services["ledger"].least == 1 && local.services["ledger"].most == 1 && local.services["ledger"].always_on
    error_message = "An instance without instances is not exactly one container."
  }
  assert {
    condition     = [for t in local.targets : t.spec.shapes if t.metadata.name == "ledger"] == [["instance"]]
    error_message = "It serves another shape than the agent's."
  }
}

run "a_trigger_is_pushed_to_the_intake" {
  command = plan
  variables {
    fleet  = ["tests/triggers"]
    notify = { url_secret = "webhook", types = ["run.failed"] }
  }

  assert {
    condition     = local.notify_env == tomap({ ERRAND_NOTIFY_FORM = "event", ERRAND_NOTIFY_TYPES = "run.failed", ERRAND_NOTIFY_KEYS = "env:NOTIFY_KEY" }) && local.notify_secrets == tomap({ NOTIFY_KEY = "errand-notify-key", ERRAND_NOTIFY_URL = "webhook" })
    error_message = "The address of the webhook is not taken from its secret."
  }

  assert {
    condition     = keys(module.topic_trigger) == ["mail", "orders", "returns"] && keys(google_pubsub_topic.trigger) == ["incoming"]
    error_message = "Each trigger has a subscription, each topic of this project is made once, and an address of HTTP is neither."
  }
  assert {
    condition     = module.topic_trigger["orders"].topic == "projects/elsewhere/topics/orders"
    error_message = "A topic of another project is not subscribed to as it is named."
  }
}

run "people_are_added_to_the_accounts_that_are_made" {
  command = plan
  variables {
    auth = {
      google_audiences = ["gcloud.example"]
      principals       = [{ group = "operators", role = "operator" }]
    }
    signing_key_versions = ["2", "1"]
  }

  assert {
    condition     = length(local.auth.principals) == 4 + 3 + 1 + 1 && local.auth.principals[8] == { group = "operators", role = "operator" }
    error_message = "The control plane does not know the agents, the functions that call it, the build and the operators."
  }
  assert {
    condition     = local.auth.principals[0].role == "worker" && local.auth.principals[0].agents == ["concierge"]
    error_message = "An agent's account may execute runs of other agents."
  }
  assert {
    condition     = local.auth.issuers[0].audiences == ["https://errand-control-123456789012.europe-west1.run.app", "gcloud.example"]
    error_message = "Tokens of Google for the control plane's address are not believed."
  }
}

run "an_agent_without_an_image_is_refused" {
  command = plan
  variables {
    agents = {
      "invoice-check"     = { image = "checker" }
      "invoice-reconcile" = { image = "reconcile" }
      "concierge"         = { image = "concierge" }
    }
  }
  expect_failures = [terraform_data.fleet["ledger"]]
}

run "agents_that_no_container_holds_are_refused" {
  command = plan
  variables {
    fleet = ["tests/fleet"]
    agents = {
      "patient"                                                       = { image = "checker" }
      "wide"                                                          = { image = "checker" }
      "abroad"                                                        = { image = "checker" }
      "strange"                                                       = { image = "checker" }
      "flow"                                                          = { image = "checker" }
      "an-agent-with-a-name-that-is-longer-than-any-account-could-be" = { image = "checker" }
    }
  }
  expect_failures = [
    terraform_data.fleet["patient"], terraform_data.fleet["wide"], terraform_data.fleet["abroad"], terraform_data.fleet["strange"], terraform_data.fleet["flow"],
  ]
}
