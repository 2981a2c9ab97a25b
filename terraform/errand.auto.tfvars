# This installation. Edit it: project and region are the least.
project = "errand-example"
region  = "europe-west1"

# Regions with Cloud Run instances (a preview). Empty where yours has none: such agents are services with one container.
instance_regions = ["europe-west1"]

# The worked example's agents, and which image of this repository each is.
fleet = ["../examples/invoices/fleet.yaml"]
agents = {
  "invoice-check"     = { image = "checker" }
  "invoice-reconcile" = { image = "reconcile" }
  "concierge"         = { image = "concierge" }
  "ledger"            = { image = "ledger" }
}

# Webhook that is told what happens to runs. Leave it out and nobody is.
notify = { url = "https://example.com/hooks/errand" }
