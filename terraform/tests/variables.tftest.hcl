# What is said about values that cannot be.

mock_provider "google" {}

variables {
  project = "errand-test"
  region  = "europe-west1"
  fleet   = []
  notify  = null
}

run "a_project_number_is_no_id" {
  command = plan
  variables {
    project = "123456789012"
  }
  expect_failures = [var.project]
}

run "a_zone_is_no_region" {
  command = plan
  variables {
    region = "europe-west1-b"
  }
  expect_failures = [var.region]
}

run "a_prefix_is_short" {
  command = plan
  variables {
    prefix = "google"
  }
  expect_failures = [var.prefix]
}

run "a_manifest_exists" {
  command = plan
  variables {
    fleet = ["../examples/nowhere.yaml"]
  }
  expect_failures = [var.fleet]
}

run "no_agent_is_public" {
  command = plan
  variables {
    agents = { a = { image = "checker", callers = ["allUsers"] } }
  }
  expect_failures = [var.agents]
}

run "what_the_configuration_sets_is_not_set_twice" {
  command = plan
  variables {
    agents = { a = { image = "checker", env = { ERRAND_URL = "https://example.com" } } }
  }
  expect_failures = [var.agents]
}

run "the_control_plane_is_not_public" {
  command = plan
  variables {
    control = { invokers = ["allAuthenticatedUsers"] }
  }
  expect_failures = [var.control]
}

run "most_instances_are_not_fewer_than_least" {
  command = plan
  variables {
    control = { min_instances = 4, max_instances = 2 }
  }
  expect_failures = [var.control]
}

run "the_newest_key_is_not_followed" {
  command = plan
  variables {
    signing_key_versions = ["latest"]
  }
  expect_failures = [var.signing_key_versions]
}

run "a_webhook_has_one_address" {
  command = plan
  variables {
    notify = { url = "https://hooks.example.com", url_secret = "webhook" }
  }
  expect_failures = [var.notify]
}

run "a_webhook_is_asked_over_tls" {
  command = plan
  variables {
    notify = { url = "http://hooks.example.com" }
  }
  expect_failures = [var.notify]
}

run "an_empty_fleet_is_a_control_plane" {
  command = plan

  assert {
    condition     = length(google_service_account.agent) == 0 && output.control_url != "" && length(google_service_account.function) == 3
    error_message = "An installation without agents cannot be planned."
  }
}
