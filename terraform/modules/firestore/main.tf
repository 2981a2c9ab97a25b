# The database, and exactly the indexes that the store's reads need. The list comes from the code that makes the reads.

locals {
  declared = jsondecode(file("${path.module}/indexes.json"))

  indexes = {
    for i in local.declared.indexes :
    "${i.collection}/${join(",", [for f in i.fields : "${f.field} ${f.order}"])}" => i
  }

  # A field has one configuration, so that one that is exempt and expires stands here once.
  exempt  = toset([for f in local.declared.exemptions : "${f.collection}/${f.field}"])
  expires = toset([for f in local.declared.ttl : "${f.collection}/${f.field}"])
  fields = {
    for key in setunion(local.exempt, local.expires) :
    key => { collection = split("/", key)[0], field = split("/", key)[1] }
  }
}

resource "google_firestore_database" "this" {
  project                           = var.project
  name                              = var.name
  location_id                       = var.location
  type                              = "FIRESTORE_NATIVE"
  concurrency_mode                  = "OPTIMISTIC"
  app_engine_integration_mode       = "DISABLED"
  point_in_time_recovery_enablement = var.point_in_time_recovery ? "POINT_IN_TIME_RECOVERY_ENABLED" : "POINT_IN_TIME_RECOVERY_DISABLED"
  delete_protection_state           = var.protect ? "DELETE_PROTECTION_ENABLED" : "DELETE_PROTECTION_DISABLED"
  deletion_policy                   = var.protect ? "ABANDON" : "DELETE"
}

resource "google_firestore_index" "this" {
  for_each = local.indexes

  project     = var.project
  database    = google_firestore_database.this.name
  collection  = each.value.collection
  query_scope = "COLLECTION"

  dynamic "fields" {
    for_each = each.value.fields
    content {
      field_path = fields.value.field
      order      = fields.value.order
    }
  }
}

resource "google_firestore_field" "this" {
  for_each = local.fields

  project    = var.project
  database   = google_firestore_database.this.name
  collection = each.value.collection
  field      = each.value.field

  # Without a block inside, this means no index at all.
  dynamic "index_config" {
    for_each = contains(local.exempt, each.key) ? [1] : []
    content {}
  }

  dynamic "ttl_config" {
    for_each = contains(local.expires, each.key) ? [1] : []
    content {}
  }
}
