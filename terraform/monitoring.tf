# Dashboard and alerts.

module "monitoring" {
  source = "./modules/monitoring"

  project  = var.project
  prefix   = var.prefix
  control  = module.control.name
  channels = var.notification_channels
  limits   = var.alerts
}
